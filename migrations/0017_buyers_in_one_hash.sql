-- not rolling: an older instance looks for the buyers of a sale in many small hashes, by this column, and has scripts of its own.
-- Stop all instances for this release; the first one that starts rebuilds the running sales.
ALTER TABLE sales DROP COLUMN buyer_shards;
