-- The archive: orders of sales that are long over, out of the table that purchases are written to. `flash-sale
-- archive` moves them here in bounded batches, each in one transaction, so an order is always in exactly one of the
-- two. Rows here are never changed again.

-- When the archiving of this sale began; from then on it is closed for good, and no writer may add to it (its epoch is
-- raised in the same transaction). How many orders were moved is counted beside the move, for the audit to compare.
ALTER TABLE sales
    ADD COLUMN archived_at     timestamptz,
    ADD COLUMN archived_orders bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT sales_archived_is_closed CHECK (archived_at IS NULL OR (closed AND closes_at < archived_at)),
    ADD CONSTRAINT sales_archived_orders_not_negative CHECK (archived_orders >= 0);

-- The same columns and the same checks as `orders`.
CREATE TABLE orders_archive (
    LIKE orders INCLUDING CONSTRAINTS,

    CONSTRAINT orders_archive_pkey PRIMARY KEY (id),
    CONSTRAINT orders_archive_terminal CHECK (status IN ('paid', 'cancelled', 'expired', 'rejected'))
);
-- "My orders". Nobody buys here, so it may be sorted as it is read.
CREATE INDEX orders_archive_by_user ON orders_archive (user_id, id);
CREATE INDEX orders_archive_by_sale ON orders_archive USING brin (sale_id) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE payments_archive (
    LIKE payments INCLUDING CONSTRAINTS,

    CONSTRAINT payments_archive_pkey PRIMARY KEY (order_id)
);

-- Every order, wherever it is. For lists and the audit; the purchase path reads `orders` alone.
CREATE VIEW all_orders AS
SELECT id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by, paid_at, closed_at
FROM orders
UNION ALL
SELECT id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by, paid_at, closed_at
FROM orders_archive;
