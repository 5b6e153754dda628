-- Decides one purchase: everything that has to be looked at and changed together, in one step.
--
-- KEYS[1] units left
-- KEYS[2] hash: buyer → how many they have
-- ARGV[1] buyer
-- ARGV[2] how many one buyer may have
--
-- Returns 1 sold · 0 sold out · 2 has as many as allowed.

--= CURE nothing runs between these lines: Redis executes a script alone
if tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0) >= tonumber(ARGV[2]) then return 2 end
if tonumber(redis.call('GET', KEYS[1]) or 0) < 1 then return 0 end
redis.call('DECR', KEYS[1])
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
return 1
