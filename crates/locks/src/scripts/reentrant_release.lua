-- Releases one holding; with the last one the lock is deleted, and a waiter is woken.
--
-- KEYS[1] the lock
-- KEYS[2] recent releases, for retries after a lost reply: a list, newest first
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
end
if given_back == 0 then
  return { redis.call('LPOS', KEYS[2], ARGV[2]) and 1 or 0, left }
end
if left == 0 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[3], 'free')
end
if ARGV[4] ~= '0' then
  redis.call('LPUSH', KEYS[2], ARGV[2])
  redis.call('LTRIM', KEYS[2], 0, 999)
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return { 1, left }
