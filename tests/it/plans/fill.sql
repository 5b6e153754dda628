INSERT INTO sales (title, price_cents, stock, taken, opens_at, closes_at)
SELECT 'sale ' || n, 100, 5000, 2000, now() - interval '9 days', now() - interval '8 days'
FROM generate_series(1, 20) AS n;
INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash,
                    created_at, pay_by, paid_at, closed_at)
SELECT n::bigint << 20, s.id, md5((n % 15000)::text)::uuid,
       CASE WHEN d.status IN ('pending_payment', 'paid') THEN 0 END, d.status::order_status,
       100,
       CASE WHEN n % 7 = 0 THEN n END, now() - interval '1 hour',
       now() + make_interval(secs => 3600 + n), CASE WHEN d.status = 'paid' THEN now() END,
       CASE WHEN d.status IN ('cancelled', 'expired') THEN now() END
FROM generate_series(1, 60000) AS n
JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS number
      FROM sales WHERE title LIKE 'sale %') AS s ON s.number = (n - 1) / 3000
CROSS JOIN LATERAL (SELECT (ARRAY['pending_payment', 'paid', 'paid', 'paid', 'cancelled',
                    'expired'])[1 + n % 6] AS status) AS d;
INSERT INTO payments (order_id, amount_cents, reference)
SELECT id, 100, 'x' FROM orders WHERE status = 'paid';
SELECT brin_summarize_new_values('orders_by_sale');
ANALYZE;
