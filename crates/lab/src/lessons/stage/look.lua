-- What a key holds, for the eyes of the audience.
--
-- KEYS[1] any key
--
-- Returns { value or nil, ms left }; a hash is shown as its fields and values in a row.

local kind = redis.call('TYPE', KEYS[1]).ok
local value = false
if kind == 'string' then
  value = redis.call('GET', KEYS[1])
elseif kind == 'hash' then
  value = table.concat(redis.call('HGETALL', KEYS[1]), ' ')
end
return { value, redis.call('PTTL', KEYS[1]) }
