-- Buckets: a hot sale is divided by a hash of the user, each part with its share of the stock, its buyers and
-- its log under Redis keys of its own. The guarded counter `taken` stays one for the sale, and so does I1.

ALTER TABLE sales
    -- Into how many the sale is divided in this epoch. Only a rebuild changes it, in the statement that
    -- raises the epoch, so that nobody can act on the new epoch by the old division.
    ADD COLUMN buckets        smallint NOT NULL DEFAULT 1,
    -- How many there were in the epoch before, until a rebuild has emptied their logs: one that died after
    -- it had raised `buckets` must not make the next one forget them.
    ADD COLUMN former_buckets smallint NOT NULL DEFAULT 1,
    ADD CONSTRAINT sales_buckets_range CHECK (buckets BETWEEN 1 AND 256),
    -- A number of buckets is only ever raised: the places of fewer are among those of more (but for the one
    -- undivided place, which `former_buckets = 1` names).
    ADD CONSTRAINT sales_former_buckets_range CHECK (former_buckets BETWEEN 1 AND buckets);

COMMENT ON COLUMN sales.buyer_shards IS 'Into how many hashes Redis spreads the buyers of each bucket.';
