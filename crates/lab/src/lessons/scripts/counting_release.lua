-- Counts down, and removes the lock at zero.
--
-- KEYS[1] the lock
-- ARGV[1] owner
-- ARGV[2] lease in ms
--
-- Returns what is left of the count · -1 not the owner's.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return -1 end
local count = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
if count > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('DEL', KEYS[1])
end
return count
