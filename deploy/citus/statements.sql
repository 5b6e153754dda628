-- The statements that would have to name the sale, as they would read then: each touches one shard, where all of SQL is
-- to be had. What the others already do, docs/postgres.md lists. tests/it/citus.rs prepares them and looks at their plans.

PREPARE of_user (bigint, uuid, bigint) AS
SELECT o.id, s.title FROM orders o JOIN sales s ON s.id = o.sale_id
WHERE o.id = $1 AND o.user_id = $2 AND o.sale_id = $3;

PREPARE mark_paid (bigint, uuid, text, bigint) AS
WITH paid AS (
    UPDATE orders SET status = 'paid', paid_at = now()
    WHERE id = $1 AND user_id = $2 AND sale_id = $4 AND status = 'pending_payment' AND pay_by > now()
    RETURNING id, sale_id, price_cents
)
INSERT INTO payments (order_id, sale_id, amount_cents, reference) SELECT id, $4, price_cents, $3 FROM paid;

PREPARE mark_cancelled (bigint, uuid, bigint) AS
WITH closed AS (
    UPDATE orders SET status = 'cancelled', slot = NULL, closed_at = now()
    WHERE id = $1 AND user_id = $2 AND sale_id = $3 AND status = 'pending_payment' AND pay_by > now()
    RETURNING id, sale_id, user_id
), returned AS (
    UPDATE sales SET taken = taken - (SELECT count(*) FROM closed) WHERE id = $3
)
INSERT INTO releases (order_id, sale_id, user_id) SELECT id, $3, user_id FROM closed;

-- Sale by sale: which sales have some, a query over all shards tells.
PREPARE expire_due (bigint, bigint) AS
WITH due AS (
    SELECT id FROM orders WHERE sale_id = $2 AND status = 'pending_payment' AND pay_by <= now()
    ORDER BY pay_by LIMIT $1 FOR UPDATE SKIP LOCKED
), closed AS (
    UPDATE orders SET status = 'expired', slot = NULL, closed_at = now() FROM due
    WHERE orders.id = due.id AND orders.sale_id = $2
    RETURNING orders.id, orders.sale_id, orders.user_id
), returned AS (
    UPDATE sales SET taken = taken - (SELECT count(*) FROM closed) WHERE id = $2
)
INSERT INTO releases (order_id, sale_id, user_id) SELECT id, $2, user_id FROM closed;

-- The conflict's target is the key, and so names the sale. One statement a sale of the batch.
PREPARE insert_missing (bigint, bigint[], uuid[], smallint[], bigint) AS
INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
SELECT id, $1, user_id, slot, 'pending_payment', $5, now(), now()
FROM UNNEST($2, $3, $4) AS d (id, user_id, slot)
ON CONFLICT (id, sale_id) DO NOTHING;

PREPARE release_settled (bigint[], timestamptz[], bigint) AS
DELETE FROM releases r USING UNNEST($1, $2) AS d (order_id, created_at)
WHERE r.order_id = d.order_id AND r.created_at = d.created_at AND r.sale_id = $3;

-- As it is today.
PREPARE count_taken (bigint, integer, bigint) AS
UPDATE sales SET taken = taken + $2 WHERE id = $1 AND epoch = $3;

PREPARE live_orders (bigint) AS
SELECT id, user_id, slot FROM orders WHERE sale_id = $1 AND status IN ('pending_payment', 'paid');
