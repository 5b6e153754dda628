-- What the locks of the lessons protect: one phone for each play. Deleted with the play.
--
-- IF NOT EXISTS, as in 0005_lab.sql and for the same reason.

CREATE TABLE IF NOT EXISTS lab.plays (
    id         text NOT NULL,
    -- Without a lower bound: what two holders of one lock do to it is to be seen.
    stock      integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT lab_plays_pkey PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS lab.play_orders (
    play       text NOT NULL,
    buyer      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT lab_play_orders_play_fkey FOREIGN KEY (play) REFERENCES lab.plays (id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS lab_play_orders_play ON lab.play_orders (play);
