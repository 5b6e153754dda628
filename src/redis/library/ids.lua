-- Leases a block of order numbers of the current UTC day.
--
-- KEYS  the ids' clock (hash: floor, day; both Unix seconds, day is a midnight), the counter of the
-- day that the caller expects
-- ARGV  that day's midnight · how many numbers
--
-- Returns { outcome, second, first number }
--   'ok'     numbers first .. first + n - 1 belong to the caller, for ids of this second
--   'day'    it is another day: the caller takes it from `second` and asks again
--   'floor'  this process has no floor, or lost it or today's counter, which may be rolled back:
--            the caller fetches a floor from Postgres and calls floor_ids first
--
-- `second` is Redis' Unix time, or the floor where that is later.
register('lease_ids', function(keys, args)
  local second = tonumber(redis.call('TIME')[1])
  local clock = redis.call('HMGET', keys[1], 'floor', 'day', 'approved')
  local floor, last_day = tonumber(clock[1]), tonumber(clock[2])
  if not (floor and last_day) or clock[3] ~= token() then return { 'floor', second, 0 } end
  if floor > second then second = floor end
  local today = second - second % 86400
  if today ~= tonumber(args[1]) then return { 'day', second, 0 } end
  if today <= last_day and redis.call('EXISTS', keys[2]) == 0 then return { 'floor', second, 0 } end
  local top = redis.call('INCRBY', keys[2], args[2])
  if today > last_day then redis.call('HSET', keys[1], 'day', today) end
  return { 'ok', second, top - tonumber(args[2]) + 1 }
end)

-- Raises the floor of the ids' clock, and approves this process to lease above it.
--
-- KEYS  the ids' clock, the counter of the floor's day
-- ARGV  the floor (Unix seconds) that Postgres gave out · its day's midnight
--
-- A floor is never lowered. The counter of its day is created if it is missing.
register('floor_ids', function(keys, args)
  if tonumber(redis.call('HGET', keys[1], 'floor') or '0') < tonumber(args[1]) then
    redis.call('HSET', keys[1], 'floor', args[1], 'day', args[2])
    redis.call('SETNX', keys[2], 0)
  end
  redis.call('HSET', keys[1], 'approved', token())
  return 1
end)
