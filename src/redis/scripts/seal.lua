-- Ends the older epochs of a sale, so that a rebuild can read the log knowing that it cannot grow.
--
-- KEYS[1] the sale's state
-- ARGV[1] the new epoch, ARGV[2] into how many shards Postgres says that the epoch before it is spread
--
-- Returns { 'ok', epoch, shards, first, most } with what was live (zeros if there was no readable state),
-- or { 'newer', epoch, 0, 0, 0 } if this epoch or a later one is live, or a later one is being built.
-- Epochs from `first` to the one before the new one may have left buyers, in at most `most` shards each:
-- rebuilds that began and did not come to their end, or a live epoch whose state is lost.
--
-- Afterwards the state has no epoch: every script answers 'absent' until the new one is installed.
-- What stays is a seal, which keeps a rebuild that was paused for long from installing an older
-- epoch, and remembers what was live, and what rebuilds were tried since, for whoever removes their keys.

local state = {}
if redis.call('TYPE', KEYS[1]).ok == 'hash' then
  state = redis.call('HMGET', KEYS[1], 'epoch', 'shards', 'sealed', 'sealed_epoch', 'sealed_shards',
    'sealed_first', 'sealed_most')
end
local number = function(field) return tonumber(field or '0') or 0 end
local new, live, sealed = tonumber(ARGV[1]), number(state[1]), number(state[3])
if live >= new or sealed > new then return { 'newer', math.max(live, sealed), 0, 0, 0 } end
local shards, first, most = number(state[2]), live + 1, number(ARGV[2])
if live == 0 then
  live, shards = number(state[4]), number(state[5])
  first, most = number(state[6]), math.max(most, number(state[7]))
  if first == 0 then first = math.max(1, new - 1) end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'sealed', new, 'sealed_epoch', live, 'sealed_shards', shards,
  'sealed_first', first, 'sealed_most', most)
return { 'ok', live, shards, first, most }
