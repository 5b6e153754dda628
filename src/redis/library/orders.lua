-- Accepted orders: acknowledged when they are written, or released.

-- Deletes log entries whose orders are committed in Postgres.
--
-- KEYS  the sale's state, its order log
-- ARGV  the epoch in which these orders were written · pairs of stream id and the number of orders
-- in that entry
--
-- Returns the orders still waiting. Idempotent: only the call that deletes an entry counts it down,
-- so a writer and a recovery pass may both acknowledge.
--
-- A stream id names an entry within one epoch only: after a loss, the log begins anew and may reuse
-- an id that some process still holds. While a sale is fenced, its log holds entries of the older
-- epoch, which the rebuild writes as orders of the new one.
register('ack', function(keys, args)
  local state = redis.call('HMGET', keys[1], 'epoch', 'pending', 'sealed', 'sealed_epoch')
  local pending = tonumber(state[2] or '0') or 0
  local of_this_log = state[1] == args[1]
  if not state[1] then of_this_log = state[3] == args[1] or state[4] == args[1] end
  if not of_this_log then return pending end
  local settled = 0
  for i = 2, #args, 2 do
    if redis.call('XDEL', keys[2], args[i]) == 1 then settled = settled + tonumber(args[i + 1]) end
  end
  if not state[2] or settled == 0 then return pending end
  return redis.call('HINCRBY', keys[1], 'pending', -settled)
end, { 'allow-oom' })

-- A buyer's record with this order marked as returned, and whether it was live until now. At most
-- KEPT returned orders with an idempotency key are kept.
local function without(before, order)
  local kept, spent, was_live = {}, 0, false
  for at = #before - RECORD + 1, 1, -RECORD do -- newest first: the oldest returned ones go
    local slot, rest = string.byte(before, at), string.sub(before, at + 1, at + 16)
    if slot < 128 and string.sub(rest, 1, 8) == order then
      slot, was_live = slot + 128, true
    end
    if slot < 128 then
      table.insert(kept, 1, string.char(slot) .. rest)
    elseif string.sub(rest, 9) ~= NO_KEY and spent < KEPT then
      spent = spent + 1
      table.insert(kept, 1, string.char(slot) .. rest)
    end
  end
  return table.concat(kept), was_live
end

-- Returns the units of cancelled, expired and rejected orders; each exactly once.
--
-- KEYS  the sale's state, its buyers
-- ARGV  epoch · the orders, 24 bytes each: user id (16) .. order id (8)
--
-- Returns { 'ok', remaining, change, units returned } or { 'absent' | 'epoch' | 'not_approved' |
-- 'corrupt', 0, 0, 0 }.
--
-- The buyer's record is the guard: a live order becomes a returned one. A repeated call finds
-- nothing live; nor does one after a rebuild, which leaves closed orders out.
register('release', function(keys, args)
  local state, why = open_state(keys[1], args[1], 'remaining', 'change')
  if why then return { why, 0, 0, 0 } end
  local remaining, change = unpack(state)
  local records, returned = {}, 0
  for at = 1, #args[2], 24 do
    local user, order = string.sub(args[2], at, at + 15), string.sub(args[2], at + 16, at + 23)
    local was_live
    records[user], was_live = without(records[user] or redis.call('HGET', keys[2], user) or '',
        order)
    if was_live then returned = returned + 1 end
  end
  if returned > 0 then
    for user, record in pairs(records) do
      if record == '' then redis.call('HDEL', keys[2], user)
      else redis.call('HSET', keys[2], user, record) end
    end
    remaining, change = remaining + returned, change + 1
    redis.call('HSET', keys[1], 'remaining', remaining, 'change', change)
  end
  return { 'ok', remaining, change, returned }
end, { 'allow-oom' })

-- Reads the record of a user in a sale.
--
-- KEYS  the sale's state, its buyers
-- ARGV  epoch · user id (16 bytes)
--
-- Returns { outcome, record or nil }; see admit.lua for the record. Unless the outcome is 'ok', the
-- record proves nothing.
register('record', function(keys, args)
  local _, why = open_state(keys[1], args[1])
  return { why or 'ok', redis.call('HGET', keys[2], args[2]) }
end, { 'no-writes' })
