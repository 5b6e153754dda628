-- Notes a buyer at home, and takes a unit from the home bucket if it has one.
--
-- KEYS[1] home bucket
-- KEYS[2] hash beside it: buyer → how many they have, or are being looked for
-- ARGV[1] buyer
-- ARGV[2] how many one buyer may have
--
-- Returns 1 taken · 0 noted, but the bucket is empty · 2 has as many as allowed.

if tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0) >= tonumber(ARGV[2]) then return 2 end
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
if tonumber(redis.call('GET', KEYS[1]) or 0) < 1 then return 0 end
redis.call('DECR', KEYS[1])
return 1
