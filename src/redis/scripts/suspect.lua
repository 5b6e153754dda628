-- How suspicious an address is: what it did in the last minutes, and how many users it has.
--
-- KEYS[1] its misdeeds (string: a number)
-- KEYS[2] its users (HyperLogLog)
-- ARGV[1] how many misdeeds to add
-- ARGV[2] a user to add, or ''
-- ARGV[3] how long it is remembered, in seconds, since the last call that added something
--
-- Returns { misdeeds, users }

local misdeeds = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
if ARGV[1] ~= '0' then
  misdeeds = misdeeds + tonumber(ARGV[1])
  redis.call('SET', KEYS[1], string.format('%d', math.min(misdeeds, 1000000)), 'EX', ARGV[3])
end
if ARGV[2] ~= '' then
  redis.call('PFADD', KEYS[2], ARGV[2])
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return { misdeeds, redis.call('PFCOUNT', KEYS[2]) }
