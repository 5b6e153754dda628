-- Payments become a ledger: what was asked of a provider, what came of it, and what goes back. An older instance still
-- inserts (order_id, amount_cents, reference), which is a captured payment as before.
SET LOCAL statement_timeout = 0; -- every payment gets a number

-- In the order in which the payments of one order speak for it.
CREATE TYPE payment_state AS ENUM ('captured', 'intent', 'refunding', 'refunded', 'failed');

ALTER TABLE payments
    DROP CONSTRAINT payments_pkey,
    ADD COLUMN id         bigint GENERATED ALWAYS AS IDENTITY,
    ADD COLUMN state      payment_state NOT NULL DEFAULT 'captured',
    ADD COLUMN attempt    integer,     -- counts an order's own; null: by an older version, or a charge that nobody asked for
    ADD COLUMN currency   text,
    ADD COLUMN charge_id  text,        -- the provider's name for the charge; `reference` is now ours
    ADD COLUMN reason     text,        -- declined: …, abandoned, late, duplicate, operator, provider
    ADD COLUMN created_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN updated_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN due_at     timestamptz NOT NULL DEFAULT now(), -- when a background task looks at it next
    ADD CONSTRAINT payments_pkey PRIMARY KEY (id),
    ADD CONSTRAINT payments_attempt_unique UNIQUE (order_id, attempt), -- also finds an order's payments
    ADD CONSTRAINT payments_charge_unique UNIQUE (charge_id);

CREATE UNIQUE INDEX payments_reference_unique ON payments (reference) WHERE attempt IS NOT NULL;
-- I13: an order keeps one charge, and has one open attempt, which paying at once and the provider's page share.
CREATE UNIQUE INDEX payments_one_kept ON payments (order_id) WHERE state = 'captured';
CREATE UNIQUE INDEX payments_one_open ON payments (order_id) WHERE state = 'intent';
CREATE INDEX payments_due ON payments (due_at) WHERE state IN ('intent', 'refunding');

-- The inbox: an event is applied in the transaction that stores it, so once.
CREATE TABLE webhook_events (
    event_id    text NOT NULL,
    kind        text NOT NULL,
    body        jsonb NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT webhook_events_pkey PRIMARY KEY (event_id)
);

-- This shop, where several share a provider: the head of every reference.
CREATE TABLE payment_shop (
    name text NOT NULL DEFAULT left(gen_random_uuid()::text, 8)
);
INSERT INTO payment_shop DEFAULT VALUES;
