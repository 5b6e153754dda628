-- Releases a lock, if it is still the caller's: compared and deleted in one step.
--
-- KEYS[1] the lock
-- KEYS[2] recent releases, for retries after a lost reply: a sorted set by time in ms
-- ARGV[1] token
-- ARGV[2] for how many ms the release is remembered; 0: not at all
--
-- Returns 1 deleted, now or by an earlier request of this same token · 0 gone, or somebody else's.

--= CURE compared and deleted in one step: nobody comes in between
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.call('ZSCORE', KEYS[2], ARGV[1]) and 1 or 0
end
redis.call('DEL', KEYS[1])
local remembered = tonumber(ARGV[2])
if remembered > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - remembered)
  redis.call('ZADD', KEYS[2], now, ARGV[1])
  redis.call('PEXPIRE', KEYS[2], remembered)
end
return 1
