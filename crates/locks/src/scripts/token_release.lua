-- Releases a lock, if it is still the caller's: compared and deleted in one step.
--
-- KEYS[1] the lock
-- KEYS[2] recent releases, for retries after a lost reply: a list, newest first
-- ARGV[1] token
-- ARGV[2] for how many ms the release is remembered; 0: not at all
--
-- Returns 1 deleted, now or by an earlier request of this same token · 0 gone, or somebody else's.

--= CURE compared and deleted in one step: nobody comes in between
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.call('LPOS', KEYS[2], ARGV[1]) and 1 or 0
end
redis.call('DEL', KEYS[1])
if ARGV[2] ~= '0' then
  redis.call('LPUSH', KEYS[2], ARGV[1])
  redis.call('LTRIM', KEYS[2], 0, 999)
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1
