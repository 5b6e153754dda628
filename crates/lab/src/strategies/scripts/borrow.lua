-- Takes one unit from a bucket, if it has one.
--
-- KEYS[1] bucket
--
-- Returns 1 taken · 0 empty, and it will never have one again.

if tonumber(redis.call('GET', KEYS[1]) or 0) < 1 then return 0 end
redis.call('DECR', KEYS[1])
return 1
