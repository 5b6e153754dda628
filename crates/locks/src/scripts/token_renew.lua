-- Lets a lease begin anew, if the lock is still the caller's.
--
-- KEYS[1] the lock
-- ARGV[1] token
-- ARGV[2] lease in ms
--
-- Returns 1 renewed · 0 gone, or somebody else's.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
