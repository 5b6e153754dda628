-- Deletes the state of a sale that has long been over.
--
-- KEYS[1] the sale's state, KEYS[2] its order log
-- ARGV[1] epoch, ARGV[2] how long (ms) it must have been over
--
-- Returns 1 if it is gone, 0 if it is not (any more) a sale to delete: another epoch is live, it ended
-- too recently by Redis' clock (an operator may have extended it), or orders wait in its log.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local state = redis.call('HMGET', KEYS[1], 'epoch', 'closes')
local closes = tonumber(state[2])
if state[1] ~= ARGV[1] or not closes or now < closes + tonumber(ARGV[2]) then return 0 end
if redis.call('XLEN', KEYS[2]) > 0 then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
