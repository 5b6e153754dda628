-- Raises the floor of the ids' clock: after Redis lost it or its counter of the day, and for every
-- newly approved Redis process, whose counter may have been rolled back.
--
-- KEYS[1] where the ids' clock stands, KEYS[2] the counter of the floor's day
-- ARGV[1] the floor (Unix seconds) that Postgres gave out, ARGV[2] its day's midnight
--
-- Returns 1 if it was set; a floor is never lowered. The counter of its day is created if it is not
-- there, and goes on otherwise.

local floor = tonumber(redis.call('HGET', KEYS[1], 'floor') or '0')
if floor >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'floor', ARGV[1], 'day', ARGV[2])
redis.call('SETNX', KEYS[2], 0)
return 1
