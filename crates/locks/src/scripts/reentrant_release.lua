-- Releases one holding; with the last one the lock is deleted, and a waiter is woken.
--
-- KEYS[1] the lock
-- KEYS[2] recent releases, for retries after a lost reply: a sorted set by time in ms
-- ARGV[1] owner
-- ARGV[2] request of the acquisition
-- ARGV[3] the channel on which waiters listen
-- ARGV[4] for how many ms the release is remembered; 0: not at all
--
-- Returns { 1, holdings left } released, now or by an earlier request · { 0, holdings of this
-- owner } there is no such holding.

local left = 0
local given_back = 0
--= CURE only the owner's lock, and only this one holding of it
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then
  given_back = redis.call('HDEL', KEYS[1], 'holding:' .. ARGV[2])
  left = redis.call('HLEN', KEYS[1]) - 2
  if left == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', ARGV[3], 'free')
  end
end
if given_back == 0 then
  return { redis.call('ZSCORE', KEYS[2], ARGV[2]) and 1 or 0, left }
end
local remembered = tonumber(ARGV[4])
if remembered > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - remembered)
  redis.call('ZADD', KEYS[2], now, ARGV[2])
  redis.call('PEXPIRE', KEYS[2], remembered)
end
return { 1, left }
