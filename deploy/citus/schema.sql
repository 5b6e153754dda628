-- The schema for Citus, as a change of what the migrations make: everything of a sale lies on one shard, by the id of
-- the sale. docs/postgres.md says what the program would have to do besides; tests/it/citus.rs checks this file against
-- the rules on plain Postgres. No server of Citus has seen it.

-- A payment and a unit on its way back lie where their order lies.
ALTER TABLE payments ADD COLUMN sale_id bigint;
UPDATE payments SET sale_id = orders.sale_id FROM orders WHERE orders.id = payments.order_id;

ALTER TABLE payments DROP CONSTRAINT payments_order_fkey, DROP CONSTRAINT payments_pkey, ALTER COLUMN sale_id SET NOT NULL;
ALTER TABLE releases DROP CONSTRAINT releases_order_fkey, DROP CONSTRAINT releases_pkey;

-- A key can only be held within a shard, so it names the sale. That an order's id is unique among all sales is then
-- the id generator's promise alone.
ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD CONSTRAINT orders_pkey PRIMARY KEY (id, sale_id);
ALTER TABLE payments
    ADD CONSTRAINT payments_pkey PRIMARY KEY (order_id, sale_id),
    ADD CONSTRAINT payments_order_fkey FOREIGN KEY (order_id, sale_id) REFERENCES orders (id, sale_id);
ALTER TABLE releases
    ADD CONSTRAINT releases_pkey PRIMARY KEY (order_id, sale_id),
    ADD CONSTRAINT releases_order_fkey FOREIGN KEY (order_id, sale_id) REFERENCES orders (id, sale_id);

-- The name of a seeded sale is unique among all sales, which no shard can hold: a table of its own does, on the
-- coordinator.
CREATE TABLE seeds (
    seed_key text NOT NULL,
    sale_id  bigint NOT NULL,

    CONSTRAINT seeds_pkey PRIMARY KEY (seed_key)
);
INSERT INTO seeds (seed_key, sale_id) SELECT seed_key, id FROM sales WHERE seed_key IS NOT NULL;
ALTER TABLE sales DROP CONSTRAINT sales_seed_key_unique;

-- Which sale an order is of, for who has only its id (old links; a client that does not pass the sale on).
CREATE TABLE sale_of_order (
    order_id bigint NOT NULL,
    sale_id  bigint NOT NULL,

    CONSTRAINT sale_of_order_pkey PRIMARY KEY (order_id)
);

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
        PERFORM create_distributed_table('sales', 'id');
        PERFORM create_distributed_table(name, 'sale_id', colocate_with => 'sales')
        FROM unnest(ARRAY['orders', 'payments', 'releases']) AS name;
        PERFORM create_distributed_table('sale_of_order', 'order_id');
    END IF;
END $$;
