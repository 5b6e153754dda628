-- Gives a lock back, if it is still the caller's: compared and deleted in one step.
--
-- KEYS[1] the lock
-- KEYS[2] what is left behind, for who asks again because the reply was lost
-- ARGV[1] token
-- ARGV[2] for how many ms; 0: nothing is left behind
--
-- Returns 1 deleted, now or by an earlier request of this same token · 0 gone, or somebody else's.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[2], 1, 'PX', ARGV[2]) end
  return redis.call('DEL', KEYS[1])
end
return redis.call('EXISTS', KEYS[2])
