-- Ends the older epochs of a sale, so that a rebuild can read the log knowing that it cannot grow.
--
-- KEYS[1] the sale's state
-- ARGV[1] the new epoch, ARGV[2] into how many shards Postgres says that the epoch before it is spread
--
-- Returns { 'ok', epoch, shards, written, written_shards } with what was live (zeros if there was no
-- readable state), or { 'newer', epoch, 0, 0, 0 } if this epoch or a later one is live, or a later one is
-- being built. `written` is the one epoch after it that may have left buyers, in so many shards (0: none):
-- that of a rebuild that began to write and did not come to its end (see writing.lua; each removes what
-- the one before it has left), or a live epoch whose state is lost.
--
-- Afterwards the state has no epoch: every script answers 'absent' until the new one is installed.
-- What stays is a seal, which keeps a rebuild that was paused for long from installing an older
-- epoch, and remembers what was live and what was written since, for whoever removes their keys.

local state = {}
if redis.call('TYPE', KEYS[1]).ok == 'hash' then
  state = redis.call('HMGET', KEYS[1], 'epoch', 'shards', 'sealed', 'sealed_epoch', 'sealed_shards',
    'written', 'written_shards')
end
local number = function(field) return tonumber(field or '0') or 0 end
local new, live, sealed = tonumber(ARGV[1]), number(state[1]), number(state[3])
if live >= new or sealed > new then return { 'newer', math.max(live, sealed), 0, 0, 0 } end
local shards, written, written_shards = number(state[2]), 0, 0
if live == 0 and sealed > 0 then
  live, shards = number(state[4]), number(state[5])
  written, written_shards = number(state[6]), number(state[7])
elseif live == 0 then
  written, written_shards = math.max(0, new - 1), number(ARGV[2])
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'sealed', new, 'sealed_epoch', live, 'sealed_shards', shards,
  'written', written, 'written_shards', written_shards)
return { 'ok', live, shards, written, written_shards }
