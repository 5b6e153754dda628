-- What happens to an order after it was written.

CREATE TABLE payments (
    order_id     bigint NOT NULL,
    amount_cents bigint NOT NULL,
    reference    text NOT NULL, -- the provider's name for the charge
    paid_at      timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT payments_pkey PRIMARY KEY (order_id), -- an order is paid once
    CONSTRAINT payments_order_fkey FOREIGN KEY (order_id) REFERENCES orders (id),
    CONSTRAINT payments_amount_not_negative CHECK (amount_cents >= 0)
);

-- The outbox: units that Postgres has taken back and Redis does not know of yet. A row is written
-- in the transaction that ends the order and deleted after Redis has the unit (I7: exactly once,
-- since the release in Redis is idempotent for each order).
CREATE TABLE releases (
    order_id   bigint NOT NULL,
    sale_id    bigint NOT NULL,
    user_id    uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT releases_pkey PRIMARY KEY (order_id),
    CONSTRAINT releases_order_fkey FOREIGN KEY (order_id) REFERENCES orders (id)
);
