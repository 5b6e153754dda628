-- The waiting room of a sale, off by default. Who waits in it stands in Redis; here is only what an
-- operator decided.

ALTER TABLE sales
    -- How long before the opening one can join, in seconds; null: the sale has no waiting room.
    ADD COLUMN room_opens_before_secs integer,
    -- The most people whose turn may begin in a second. What is measured and what is left may allow fewer.
    ADD COLUMN room_per_second        integer NOT NULL DEFAULT 1000,
    -- How long a turn lasts once it has begun.
    ADD COLUMN room_turn_secs         integer NOT NULL DEFAULT 120,
    -- How many more people than units may have their turn at once, in percent of the units: some never buy.
    ADD COLUMN room_overbooking       integer NOT NULL DEFAULT 20,

    ADD CONSTRAINT sales_room_opens_before_range CHECK (room_opens_before_secs BETWEEN 0 AND 86400),
    ADD CONSTRAINT sales_room_per_second_range CHECK (room_per_second BETWEEN 1 AND 100000),
    ADD CONSTRAINT sales_room_turn_range CHECK (room_turn_secs BETWEEN 1 AND 600),
    ADD CONSTRAINT sales_room_overbooking_range CHECK (room_overbooking BETWEEN 0 AND 400);
