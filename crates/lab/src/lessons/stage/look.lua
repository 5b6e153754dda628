-- What keys hold, for the eyes of the audience.
--
-- KEYS any keys
--
-- Returns for each { value or nil, ms left }; a hash is shown as its fields and values in a row.

local seen = {}
for number, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local value = false
  if kind == 'string' then
    value = redis.call('GET', key)
  elseif kind == 'hash' then
    value = table.concat(redis.call('HGETALL', key), ' ')
  end
  seen[number] = { value, redis.call('PTTL', key) }
end
return seen
