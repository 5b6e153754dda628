-- Lesson 13: an order that is to be paid, and what the payment provider has given back.
--
-- IF NOT EXISTS, as in 0001_arenas.sql and for the same reason.

ALTER TABLE lab.play_orders
    ADD COLUMN IF NOT EXISTS status text NOT NULL DEFAULT 'paid',
    -- Null: it was paid when it was made.
    ADD COLUMN IF NOT EXISTS pay_by timestamptz;

CREATE TABLE IF NOT EXISTS lab.play_refunds (
    play text NOT NULL,
    -- The idempotency key of the request. Null: it had none, and is another refund each time.
    key  text,

    CONSTRAINT lab_play_refunds_key UNIQUE (play, key),
    CONSTRAINT lab_play_refunds_play_fkey FOREIGN KEY (play) REFERENCES lab.plays (id) ON DELETE CASCADE
);
