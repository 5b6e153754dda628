-- Takes a lock for one owner and numbers the holding.
--
-- KEYS[1] the lock: the token of its holder
-- KEYS[2] the fencing counter, which never expires
-- ARGV[1] token, different for every acquisition
-- ARGV[2] lease in ms
--
-- Returns { 1, fencing } now taken · { 2, fencing } taken before by this same token (its reply was
-- lost) · { 0, ms left } somebody else's.

local holder = redis.call('GET', KEYS[1])
if not holder then
  --= FLAW said by one server alone: a replica that takes over may never have heard of it
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return { 1, redis.call('INCR', KEYS[2]) }
end
if holder == ARGV[1] then
  -- Nobody has taken it since, so the counter is still that of our own attempt.
  return { 2, tonumber(redis.call('GET', KEYS[2])) }
end
return { 0, redis.call('PTTL', KEYS[1]) }
