-- Brings an operator's change of a sale from Postgres into Redis.
--
-- KEYS[1] the sale's state
-- ARGV    epoch, version, stock, opens (ms), closes (ms), paused (0/1), limit
--
-- Returns { outcome, remaining, change }: 'ok' applied, 'unchanged' Redis has this version or a
-- newer one, 'short' fewer units remain than the change takes away, 'absent', 'epoch', 'corrupt'.
--
-- Versions only grow, so two operators, a late instance and a repeated call end in the same state.
-- The stock is a total: what is left moves by the difference to the total known here.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'version', 'stock', 'remaining', 'change')
if not state[1] then return { 'absent', 0, 0 } end
if state[1] ~= ARGV[1] then return { 'epoch', 0, 0 } end
local version, stock = tonumber(state[2]), tonumber(state[3])
local remaining, change = tonumber(state[4]), tonumber(state[5])
if not (version and stock and remaining and change) then return { 'corrupt', 0, 0 } end
if tonumber(ARGV[2]) <= version then return { 'unchanged', remaining, change } end

remaining = remaining + tonumber(ARGV[3]) - stock
if remaining < 0 then return { 'short', remaining + stock - tonumber(ARGV[3]), change } end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'stock', ARGV[3], 'remaining', remaining,
  'opens', ARGV[4], 'closes', ARGV[5], 'paused', ARGV[6], 'limit', ARGV[7], 'change', change + 1)
return { 'ok', remaining, change + 1 }
