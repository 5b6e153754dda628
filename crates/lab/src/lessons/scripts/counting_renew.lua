-- Lets the lease begin anew while the owner's count is not zero.
--
-- KEYS[1] the lock
-- ARGV[1] owner
-- ARGV[2] lease in ms
--
-- Returns 1 renewed · 0 not the owner's.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
