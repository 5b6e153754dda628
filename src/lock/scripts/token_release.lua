-- Gives a lock back, if it is still the caller's: compared and deleted in one step.
--
-- KEYS[1] the lock
-- ARGV[1] token
--
-- Returns 1 deleted · 0 gone, or somebody else's.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
