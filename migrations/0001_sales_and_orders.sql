-- Sales and orders: the truth. The invariants of a sale stand here as named constraints; the
-- program maps their names to domain outcomes, so renaming one is a change of behaviour.

CREATE TABLE sales (
    id                   bigint GENERATED ALWAYS AS IDENTITY,
    title                text NOT NULL,
    description          text NOT NULL DEFAULT '',
    image_url            text NOT NULL DEFAULT '',
    currency             text NOT NULL DEFAULT 'USD',
    price_cents          bigint NOT NULL,
    original_price_cents bigint,
    -- Units on sale, and how many of them live orders hold. `taken` moves in the same transaction
    -- as the orders it counts, so I1 (live orders <= stock) is true in every snapshot.
    stock                integer NOT NULL,
    taken                integer NOT NULL DEFAULT 0,
    per_user_limit       smallint NOT NULL DEFAULT 1,
    opens_at             timestamptz NOT NULL,
    closes_at            timestamptz NOT NULL,
    payment_timeout_secs integer NOT NULL DEFAULT 900,
    paused               boolean NOT NULL DEFAULT false,
    -- Closed by an operator, for good.
    closed               boolean NOT NULL DEFAULT false,
    -- The live generation of this sale in Redis; a rebuild increments it first, which fences every
    -- writer that still holds orders of an older one.
    epoch                bigint NOT NULL DEFAULT 1,
    -- Increments with every operator's change; Redis takes only newer versions.
    version              bigint NOT NULL DEFAULT 1,
    -- Into how many hashes Redis spreads the buyers of this epoch.
    buyer_shards         integer NOT NULL,
    -- Seeded sales carry a name, so that seeding twice makes one.
    seed_key             text,
    created_at           timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT sales_pkey PRIMARY KEY (id),
    CONSTRAINT sales_seed_key_unique UNIQUE (seed_key),
    CONSTRAINT sales_title_length CHECK (char_length(title) BETWEEN 1 AND 200),
    CONSTRAINT sales_currency_code CHECK (currency ~ '^[A-Z]{3}$'),
    CONSTRAINT sales_price_not_negative CHECK (price_cents >= 0),
    CONSTRAINT sales_original_price_not_below_price CHECK (original_price_cents >= price_cents),
    CONSTRAINT sales_stock_not_negative CHECK (stock >= 0),
    CONSTRAINT sales_taken_not_negative CHECK (taken >= 0),
    CONSTRAINT sales_taken_within_stock CHECK (taken <= stock), -- I1
    CONSTRAINT sales_per_user_limit_range CHECK (per_user_limit BETWEEN 1 AND 100),
    CONSTRAINT sales_closes_after_it_opens CHECK (closes_at > opens_at),
    CONSTRAINT sales_payment_timeout_range CHECK (payment_timeout_secs BETWEEN 1 AND 604800),
    CONSTRAINT sales_buyer_shards_positive CHECK (buyer_shards > 0)
);

CREATE TYPE order_status AS ENUM ('queued', 'pending_payment', 'paid', 'cancelled', 'expired', 'rejected');

CREATE TABLE orders (
    id               bigint NOT NULL,  -- from the id generator; its high 31 bits are seconds
    -- No foreign key: the guarded counter touches the sale's row in the same transaction and fails
    -- if there is none, and sales are never deleted. A check per inserted row would cost more than
    -- the insert.
    sale_id          bigint NOT NULL,
    user_id          uuid NOT NULL,
    -- Which of the user's `per_user_limit` places this order takes; null once it takes none.
    slot             smallint,
    status           order_status NOT NULL,
    price_cents      bigint NOT NULL,
    -- The head of a SHA-256 of the client's Idempotency-Key, so that a rebuild can restore it.
    idempotency_hash bigint,
    created_at       timestamptz NOT NULL, -- Redis time of the admission
    pay_by           timestamptz,          -- Postgres time; null for a rejected order
    paid_at          timestamptz,
    closed_at        timestamptz,

    CONSTRAINT orders_pkey PRIMARY KEY (id),
    CONSTRAINT orders_id_positive CHECK (id > 0),
    CONSTRAINT orders_slot_range CHECK (slot BETWEEN 0 AND 99),
    CONSTRAINT orders_slot_iff_live CHECK ((slot IS NOT NULL) = (status IN ('pending_payment', 'paid'))),
    -- `queued` exists only between Redis and here; it is never a row.
    CONSTRAINT orders_never_queued CHECK (status <> 'queued'),
    CONSTRAINT orders_pay_by_unless_rejected CHECK ((pay_by IS NULL) = (status = 'rejected')),
    CONSTRAINT orders_paid_at_iff_paid CHECK ((paid_at IS NOT NULL) = (status = 'paid')),
    CONSTRAINT orders_closed_at_iff_closed
        CHECK ((closed_at IS NOT NULL) = (status IN ('cancelled', 'expired', 'rejected')))
);

-- I2: a user holds at most `per_user_limit` live orders of a sale, one for each slot. Nulls are
-- distinct, so closed orders never collide; and because they are in it all the same, this one index
-- also serves "my orders". A second one on user_id would cost a purchase 4 microseconds of CPU.
CREATE UNIQUE INDEX orders_one_live_per_user_slot ON orders (user_id, sale_id, slot);

-- The orders of a sale, for a rebuild, an audit and the operator. A sale's orders lie together in
-- time, which is all that a block range index needs, and it costs an insert next to nothing.
CREATE INDEX orders_by_sale ON orders USING brin (sale_id) WITH (pages_per_range = 32, autosummarize = on);

-- What the expiry sweeper looks for.
CREATE INDEX orders_by_pay_by ON orders (pay_by) WHERE status = 'pending_payment';

-- Closed orders that still answer the replay of an Idempotency-Key after a rebuild. Touched only when
-- an order with a key is closed.
CREATE INDEX orders_replayable ON orders (sale_id)
    WHERE status IN ('cancelled', 'expired', 'rejected') AND idempotency_hash IS NOT NULL;

COMMENT ON TABLE orders IS 'One row for every purchase answered 202, once its log entry is written.';
