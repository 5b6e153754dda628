-- Lets a lease begin anew, if this holding is still there.
--
-- KEYS[1] the lock
-- ARGV[1] owner
-- ARGV[2] request of the acquisition
-- ARGV[3] lease in ms
--
-- Returns 1 renewed · 0 gone, or somebody else's.

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], 'holding:' .. ARGV[2]) == 0 then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
