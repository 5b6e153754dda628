-- What two strategies need besides: a row for each unit, and messages that wait to be published.

-- skip-locked: the units of an arena.
CREATE TABLE IF NOT EXISTS lab.units (
    arena    text NOT NULL,
    number   integer NOT NULL,
    -- The order that has it; null: free.
    order_id text,

    CONSTRAINT lab_units_pkey PRIMARY KEY (arena, number),
    CONSTRAINT lab_units_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS lab_units_free ON lab.units (arena, number) WHERE order_id IS NULL;

-- transactional-message: what was sold, and whether the relay has told the queue.
CREATE TABLE IF NOT EXISTS lab.messages (
    -- Of the order that is to be written.
    id        text NOT NULL,
    arena     text NOT NULL,
    buyer     text NOT NULL,
    published boolean NOT NULL DEFAULT false,

    CONSTRAINT lab_messages_pkey PRIMARY KEY (id),
    CONSTRAINT lab_messages_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS lab_messages_arena_buyer ON lab.messages (arena, buyer);
CREATE INDEX IF NOT EXISTS lab_messages_unpublished ON lab.messages (arena) WHERE NOT published;
