-- Leases a block of order numbers of the current UTC day.
--
-- KEYS[1] where the ids' clock stands (hash: floor, day; both Unix seconds, day is a midnight)
-- KEYS[2] the counter of the day that the caller expects it to be
-- ARGV[1] that day's midnight, ARGV[2] how many numbers
--
-- Returns { outcome, second, first number }
--   'ok'     numbers first .. first + n - 1 belong to the caller, for ids of this second
--   'day'    it is another day: the caller takes it from `second` and asks again
--   'floor'  the clock's floor or today's counter is missing: Redis lost them (or never had them).
--            The caller fetches a new floor from Postgres and calls floor_ids first.
--
-- `second` is Redis' Unix time, or the floor where that is later.

local second = tonumber(redis.call('TIME')[1])
local clock = redis.call('HMGET', KEYS[1], 'floor', 'day')
local floor, last_day = tonumber(clock[1]), tonumber(clock[2])
if not (floor and last_day) then return { 'floor', second, 0 } end
if floor > second then second = floor end
local today = second - second % 86400
if today ~= tonumber(ARGV[1]) then return { 'day', second, 0 } end
if today <= last_day and redis.call('EXISTS', KEYS[2]) == 0 then return { 'floor', second, 0 } end
local top = redis.call('INCRBY', KEYS[2], ARGV[2])
if today > last_day then redis.call('HSET', KEYS[1], 'day', today) end
return { 'ok', second, top - tonumber(ARGV[2]) + 1 }
