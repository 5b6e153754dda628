-- Ends the older epochs of a sale, so that a rebuild can read the log knowing that it cannot grow.
--
-- KEYS[1] the sale's state
-- ARGV[1] the new epoch
--
-- Returns { 'ok', epoch, shards } with what was live (zeros if there was no readable state), or
-- { 'newer', epoch, 0 } if this epoch or a later one is live, or a later one is being built.
--
-- Afterwards the state has no epoch: every script answers 'absent' until the new one is installed.
-- What stays is a seal, which keeps a rebuild that was paused for long from installing an older
-- epoch, and remembers what was live for whoever removes its keys.

local state = {}
if redis.call('TYPE', KEYS[1]).ok == 'hash' then
  state = redis.call('HMGET', KEYS[1], 'epoch', 'shards', 'sealed', 'sealed_epoch', 'sealed_shards')
end
local number = function(field) return tonumber(field or '0') or 0 end
local new, live, sealed = tonumber(ARGV[1]), number(state[1]), number(state[3])
if live >= new or sealed > new then return { 'newer', math.max(live, sealed), 0 } end
local shards = number(state[2])
if live == 0 then live, shards = number(state[4]), number(state[5]) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'sealed', new, 'sealed_epoch', live, 'sealed_shards', shards)
return { 'ok', live, shards }
