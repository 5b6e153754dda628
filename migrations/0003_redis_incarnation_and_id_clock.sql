-- What Postgres knows of Redis, so that a loss of data there cannot go unnoticed.

-- The one Redis process that has been checked against Postgres. The gate opens to no other.
CREATE TABLE redis_incarnation (
    singleton   boolean NOT NULL DEFAULT true,
    run_id      text NOT NULL,
    approved_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT redis_incarnation_pkey PRIMARY KEY (singleton),
    CONSTRAINT redis_incarnation_singleton CHECK (singleton)
);

-- The last second (Unix) that was given out as a floor for the id generator. Only asked when Redis
-- has lost its own floor or the counter of the day; never goes back.
CREATE TABLE id_clock (
    singleton boolean NOT NULL DEFAULT true,
    second    bigint NOT NULL,

    CONSTRAINT id_clock_pkey PRIMARY KEY (singleton),
    CONSTRAINT id_clock_singleton CHECK (singleton)
);
INSERT INTO id_clock (second) VALUES (0);
