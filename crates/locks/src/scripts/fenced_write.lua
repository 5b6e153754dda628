-- Writes, unless a holder with a newer number has written.
--
-- KEYS[1] the resource: a hash
-- ARGV[1] fencing token of the writer
-- ARGV[2] value
--
-- Returns { 1, newest } written · { 0, newest } refused. Equal is the same holder, writing again.

local newest = tonumber(redis.call('HGET', KEYS[1], 'newest') or 0)
if tonumber(ARGV[1]) < newest then return { 0, newest } end
redis.call('HSET', KEYS[1], 'newest', ARGV[1], 'value', ARGV[2])
return { 1, tonumber(ARGV[1]) }
