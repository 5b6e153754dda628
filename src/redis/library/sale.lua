-- The state of a sale besides its purchases: read, changed by operators, fenced, activated,
-- evicted.

-- Reads a sale. KEYS its state. Returns { epoch, version, stock, remaining, admitted, pending,
-- revision, approved, process }, nil for what is missing: `approved` is the process that it was
-- activated in, `process` the one that answers.
register('snapshot', function(keys)
  local state = redis.call('HMGET', keys[1], 'epoch', 'version', 'stock', 'remaining', 'admitted',
      'pending', 'change', 'approved')
  state[9] = token()
  return state
end, { 'no-writes' })

-- Approves this process for a sale whose slot has moved here from another approved process.
--
-- KEYS  the sale's state
-- ARGV  epoch · the process that it is approved in · the process that is to be approved
--
-- Returns 1, or 0 if one of these has changed since the caller read it.
register('adopt', function(keys, args)
  local state = redis.call('HMGET', keys[1], 'epoch', 'approved')
  if state[1] ~= args[1] or state[2] ~= args[2] or token() ~= args[3] then return 0 end
  redis.call('HSET', keys[1], 'approved', args[3])
  return 1
end)

-- Applies an operator's change from Postgres.
--
-- KEYS  the sale's state
-- ARGV  epoch · version · stock · opens (ms) · closes (ms) · paused (0/1) · limit
--
-- Returns { outcome, remaining }: 'ok'; 'unchanged', Redis has this version or a newer one;
-- 'short', fewer units remain than the change takes away; 'absent', 'epoch', 'not_approved',
-- 'corrupt'. Versions only grow, so concurrent, late and repeated calls end in the same state. The
-- stock is a total: the units left move by its difference.
register('apply_version', function(keys, args)
  local state, why = open_state(keys[1], args[1], 'version', 'stock', 'remaining', 'change')
  if why then return { why, 0 } end
  local version, stock, remaining, change = unpack(state)
  if tonumber(args[2]) <= version then return { 'unchanged', remaining } end
  local left = remaining + tonumber(args[3]) - stock
  if left < 0 then return { 'short', remaining } end
  redis.call('HSET', keys[1], 'version', args[2], 'stock', args[3], 'remaining', left, 'opens',
      args[4], 'closes', args[5], 'paused', args[6], 'limit', args[7], 'change', change + 1)
  return { 'ok', left }
end)

-- Ends the older epochs of a sale: from then on its log cannot grow, and a rebuild can read it.
--
-- KEYS  the sale's state
-- ARGV  the new epoch
--
-- Returns { 'ok', epoch, shards }: the live epoch (0 if there was no readable state), and how many
-- hashes held its buyers (0: one, as since the function library); or { 'newer', epoch, 0 } if this
-- epoch or a later one is live or being built.
--
-- Afterwards the state has no epoch, so every function answers 'absent' until the new one is
-- activated. The fence stays: it keeps a slow rebuild from activating an older epoch, and names the
-- process that was fenced. Its fields keep the names (`sealed`) that older versions read.
register('fence', function(keys, args)
  local state = {}
  if redis.call('TYPE', keys[1]).ok == 'hash' then
    state = redis.call('HMGET', keys[1], 'epoch', 'shards', 'sealed', 'sealed_epoch',
        'sealed_shards')
  end
  local function number(field) return tonumber(field or '0') or 0 end
  local new, live, fenced = tonumber(args[1]), number(state[1]), number(state[3])
  if live >= new or fenced > new then return { 'newer', math.max(live, fenced), 0 } end
  local shards = number(state[2])
  if live == 0 then live, shards = number(state[4]), number(state[5]) end
  -- Buyers of an unfinished rebuild.
  if fenced > 0 then redis.call('UNLINK', buyers_of(keys[1], fenced)) end
  redis.call('DEL', keys[1])
  redis.call('HSET', keys[1], 'sealed', args[1], 'sealed_epoch', live, 'sealed_shards', shards,
      'sealed_by', token())
  return { 'ok', live, shards }
end)

-- Opens an epoch of a sale that was fenced for it, and approves this process: the last step of a
-- rebuild, and of creating a sale.
--
-- KEYS  the sale's state, its order log, the buyers of the new epoch
-- ARGV  epoch · version · stock · opens (ms) · closes (ms) · paused (0/1) · limit · remaining ·
-- admitted · users among the buyers
--
-- Returns 'ok'; 'newer' if this or a later epoch is live, or a later one is being built; 'unfenced'
-- if the fence or some of the buyers are gone (FLUSHALL, a restart, a failover since);
-- 'log' if orders of an older epoch still wait in the log.
register('activate', function(keys, args)
  local state = redis.call('HMGET', keys[1], 'epoch', 'sealed', 'sealed_by', 'sealed_epoch')
  local epoch, fenced = tonumber(args[1]), tonumber(state[2] or '0')
  if tonumber(state[1] or '0') >= epoch or fenced > epoch then return 'newer' end
  if fenced ~= epoch or state[3] ~= token() or redis.call('HLEN', keys[3]) ~= tonumber(args[10])
      then return 'unfenced' end
  if redis.call('XLEN', keys[2]) > 0 then return 'log' end
  redis.call('UNLINK', buyers_of(keys[1], tonumber(state[4])))
  redis.call('DEL', keys[1])
  redis.call('PERSIST', keys[3])
  redis.call('HSET', keys[1], 'epoch', args[1], 'version', args[2], 'stock', args[3], 'opens',
      args[4], 'closes', args[5], 'paused', args[6], 'limit', args[7], 'remaining', args[8],
      'admitted', args[9], 'pending', 0, 'change', 1, 'approved', token())
  return 'ok'
end)

-- Deletes the state of a sale that has long been over.
--
-- KEYS  the sale's state, its order log, its buyers
-- ARGV  epoch · how long (ms) it must have been over
--
-- Returns 1 if it is gone, 0 if it is not (any more) a sale to delete: another epoch is live, it
-- ended too recently by Redis' clock (an operator may have extended it), or orders wait in its log.
register('evict', function(keys, args)
  local state = redis.call('HMGET', keys[1], 'epoch', 'closes')
  local closes = tonumber(state[2])
  if state[1] ~= args[1] or not closes or unix_ms() < closes + tonumber(args[2]) then return 0 end
  if redis.call('XLEN', keys[2]) > 0 then return 0 end
  redis.call('UNLINK', keys[1], keys[2], keys[3])
  return 1
end, { 'allow-oom' })
