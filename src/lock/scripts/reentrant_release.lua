-- Gives one holding back; with the last one the lock goes, and somebody who waits is woken.
--
-- KEYS[1] the lock
-- KEYS[2] what is left behind, for who asks again because the reply was lost
-- ARGV[1] owner
-- ARGV[2] request of the acquisition
-- ARGV[3] the channel on which waiters listen
-- ARGV[4] for how many ms something is left behind; 0: nothing
--
-- Returns { 1, holdings left } given back, now or by an earlier request · { 0, holdings of this owner } this
-- holding is not there.

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return { redis.call('EXISTS', KEYS[2]), 0 } end
local given_back = redis.call('HDEL', KEYS[1], 'holding:' .. ARGV[2])
if given_back == 0 then
  given_back = redis.call('EXISTS', KEYS[2])
elseif tonumber(ARGV[4]) > 0 then
  redis.call('SET', KEYS[2], 1, 'PX', ARGV[4])
end
local left = redis.call('HLEN', KEYS[1]) - 2
if left == 0 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[3], 'free')
end
return { given_back, left }
