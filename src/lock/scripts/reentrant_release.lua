-- Gives one holding back; with the last one the lock goes, and somebody who waits is woken.
--
-- KEYS[1] the lock
-- ARGV[1] owner
-- ARGV[2] request of the acquisition
-- ARGV[3] the channel on which waiters listen
--
-- Returns { 1, holdings left } given back · { 0, holdings of this owner } this holding is not there.

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return { 0, 0 } end
local given_back = redis.call('HDEL', KEYS[1], 'holding:' .. ARGV[2])
local left = redis.call('HLEN', KEYS[1]) - 2
if left == 0 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[3], 'free')
end
return { given_back, left }
