-- Fills a list with one token for each unit, once.
--
-- KEYS[1] list of tokens
-- KEYS[2] set once the list has been filled
-- ARGV[1] how many units there are
--
-- Returns 1 filled · 0 filled before.

if redis.call('SETNX', KEYS[2], 1) == 0 then return 0 end
for unit = 1, tonumber(ARGV[1]) do redis.call('RPUSH', KEYS[1], unit) end
return 1
