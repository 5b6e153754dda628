-- not rolling: an older instance reads the columns that go here.
--
-- A sale is no longer divided into buckets: it is on one Redis server, under the keys that an
-- undivided sale always had (docs/scale.md says why). What a divided sale still has in Redis is not found.

DO $$
DECLARE
    divided text;
BEGIN
    SELECT string_agg(id::text, ', ' ORDER BY id) INTO divided
    FROM sales WHERE buckets > 1 AND closes_at > now() AND NOT closed;
    IF divided IS NOT NULL THEN
        RAISE EXCEPTION 'sales % are divided into buckets, which this release does not know, and are '
            'not over: go back to the release before, close them or let them end, wait until '
            'flash_sale_backlog_orders is 0, and upgrade then', divided;
    END IF;
END $$;

ALTER TABLE sales DROP COLUMN buckets, DROP COLUMN former_buckets;

COMMENT ON COLUMN sales.buyer_shards IS 'Into how many hashes Redis spreads the buyers of the sale.';
