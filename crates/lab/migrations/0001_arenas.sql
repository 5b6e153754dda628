-- The lab: stocks that one strategy each sells, apart from every real sale. Nothing here refers to a
-- table of the sale, and deleting an arena deletes all that belongs to it.
--
-- IF NOT EXISTS, because one strategy runs the whole production path in a schema of its own, with these
-- same migrations, in the same database.

CREATE SCHEMA IF NOT EXISTS lab;

-- What an arena is. A row, so that a second server process on the same stores serves it too.
CREATE TABLE IF NOT EXISTS lab.arenas (
    id             text NOT NULL,
    strategy       text NOT NULL,
    stock          integer NOT NULL,
    nodes          integer NOT NULL,
    per_user_limit integer NOT NULL,
    options        jsonb NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz NOT NULL,
    -- How often a verdict was asked for: every process that serves the arena answers by writing its
    -- tally (lab.tallies.answered) once it is quiet.
    asked          bigint NOT NULL DEFAULT 0,

    CONSTRAINT lab_arenas_pkey PRIMARY KEY (id),
    CONSTRAINT lab_arenas_stock_range CHECK (stock BETWEEN 1 AND 10000),
    CONSTRAINT lab_arenas_nodes_range CHECK (nodes BETWEEN 1 AND 8),
    CONSTRAINT lab_arenas_limit_range CHECK (per_user_limit BETWEEN 1 AND 100)
);

-- What is on sale. `remaining` has no lower bound on purpose: what a strategy does to it is to be seen.
CREATE TABLE IF NOT EXISTS lab.stock (
    arena     text NOT NULL,
    -- 'thing' is what is sold; 'gift' comes with it, for those strategies that touch two rows.
    item      text NOT NULL,
    remaining integer NOT NULL,
    -- How often the row was written, for optimistic locking.
    version   bigint NOT NULL DEFAULT 0,
    -- The highest fencing token that has written here.
    fence     bigint NOT NULL DEFAULT 0,

    CONSTRAINT lab_stock_pkey PRIMARY KEY (arena, item),
    CONSTRAINT lab_stock_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);

-- Orders, with nothing that would stop a second one of the same buyer: that is the strategy's task.
CREATE TABLE IF NOT EXISTS lab.orders (
    id         text NOT NULL,
    arena      text NOT NULL,
    buyer      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT lab_orders_pkey PRIMARY KEY (id),
    CONSTRAINT lab_orders_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS lab_orders_arena_buyer ON lab.orders (arena, buyer);

-- The same with the constraint: a buyer has a first, a second, ... order, each once.
CREATE TABLE IF NOT EXISTS lab.unique_orders (
    id         text NOT NULL,
    arena      text NOT NULL,
    buyer      text NOT NULL,
    nth        integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT lab_unique_orders_pkey PRIMARY KEY (id),
    CONSTRAINT lab_unique_orders_buyer_nth_unique UNIQUE (arena, buyer, nth),
    CONSTRAINT lab_unique_orders_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);

-- Locks as rows (crates/locks/src/table.rs). A free lock keeps its row, and with it its version. The name begins
-- with the prefix of the arena's keys, so that they can be removed together.
CREATE TABLE IF NOT EXISTS lab.locks (
    name       text NOT NULL,
    -- The token of the holder; null: free.
    owner      text,
    -- How often it was taken: a fencing token, which only ever grows.
    version    bigint NOT NULL,
    expires_at timestamptz NOT NULL,

    CONSTRAINT lab_locks_pkey PRIMARY KEY (name)
);

-- Resources that refuse a holder whose time is over (crates/locks/src/fencing.rs).
CREATE TABLE IF NOT EXISTS lab.fenced (
    name   text NOT NULL,
    -- The highest fencing token that was ever seen here.
    newest bigint NOT NULL,
    value  text NOT NULL,

    CONSTRAINT lab_fenced_pkey PRIMARY KEY (name)
);

-- What each process that serves an arena has counted there; a verdict adds them up.
CREATE TABLE IF NOT EXISTS lab.tallies (
    arena    text NOT NULL,
    process  uuid NOT NULL,
    counts   jsonb NOT NULL DEFAULT '{}',
    -- The last lab.arenas.asked that this process has answered.
    answered bigint NOT NULL DEFAULT 0,

    CONSTRAINT lab_tallies_pkey PRIMARY KEY (arena, process),
    CONSTRAINT lab_tallies_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);

-- Who tried to buy, and got an answer that was not a failure: what could have been sold at most.
CREATE TABLE IF NOT EXISTS lab.buyers (
    arena text NOT NULL,
    buyer text NOT NULL,
    tries integer NOT NULL DEFAULT 0,

    CONSTRAINT lab_buyers_pkey PRIMARY KEY (arena, buyer),
    CONSTRAINT lab_buyers_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);

-- The orders that buyers were told of. One that has no row was lost.
CREATE TABLE IF NOT EXISTS lab.told (
    arena    text NOT NULL,
    order_id text NOT NULL,

    CONSTRAINT lab_told_pkey PRIMARY KEY (arena, order_id),
    CONSTRAINT lab_told_arena_fkey FOREIGN KEY (arena) REFERENCES lab.arenas (id) ON DELETE CASCADE
);
