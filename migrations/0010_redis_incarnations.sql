-- not rolling: an older instance approves a Redis process by the column that goes here.
-- A Redis Cluster has several primaries, and each process is checked against Postgres by itself: the gate of
-- a sale is open while the process that has its keys is one of these. One server, or a primary that Sentinels
-- watch, is a set of one: approving another replaces it.
ALTER TABLE redis_incarnation
    DROP CONSTRAINT redis_incarnation_pkey,
    DROP CONSTRAINT redis_incarnation_singleton,
    DROP COLUMN singleton,
    ADD CONSTRAINT redis_incarnation_pkey PRIMARY KEY (run_id);
