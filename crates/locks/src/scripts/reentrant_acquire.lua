-- Takes a lock, or takes it once more.
--
-- KEYS[1] the lock: a hash
-- KEYS[2] the fencing counter, which never expires
-- ARGV[1] owner
-- ARGV[2] request: different for every acquisition, the same for every attempt of one
-- ARGV[3] lease in ms
--
-- Returns { 1, fencing, holdings } ours · { 0, ms left, 0 } somebody else's.
--
-- Each holding is a field, not a count: an attempt that comes twice, because its reply was lost, is
-- one holding. The lease only grows: a short second holding must not end the first.

local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return { 0, redis.call('PTTL', KEYS[1]), 0 } end
if not owner then
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fencing', redis.call('INCR', KEYS[2]))
end
--= CURE a field for each request, not a count: one that comes twice is one holding
redis.call('HSET', KEYS[1], 'holding:' .. ARGV[2], 1)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return { 1, tonumber(redis.call('HGET', KEYS[1], 'fencing')), redis.call('HLEN', KEYS[1]) - 2 }
