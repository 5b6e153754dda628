-- Defence against bots, per sale and off by default.

ALTER TABLE sales
    -- A purchase needs a pass, which is given out from the opening on.
    ADD COLUMN purchase_pass  boolean NOT NULL DEFAULT false,
    -- The leading zero bits of the proof of work that a purchase (or joining the waiting room) needs from somebody
    -- above suspicion; 0: none.
    ADD COLUMN challenge_bits integer NOT NULL DEFAULT 0,

    ADD CONSTRAINT sales_challenge_bits_range CHECK (challenge_bits BETWEEN 0 AND 24);
