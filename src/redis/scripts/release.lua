-- Returns the units of cancelled, expired and rejected orders; each exactly once.
--
-- KEYS[1]   the sale's state
-- KEYS[1+i] the shard of order i's buyer
-- ARGV[1]   epoch
-- ARGV[1+i] user id (16 bytes) .. order id (8)
--
-- Returns { 'ok', remaining, change, units returned } or { 'absent' | 'epoch' | 'corrupt', 0, 0, 0 }.
--
-- The buyer's own record is the guard: a live record of this order is turned into a returned one
-- (kept, at most 8 a user, when it carries an idempotency key; dropped otherwise). A repeated call
-- finds nothing live and does nothing. After a rebuild, which leaves closed orders out, the same.

local RECORD, KEPT = 17, 8
local NO_KEY = string.rep('\0', 8)

local state = redis.call('HMGET', KEYS[1], 'epoch', 'remaining', 'change')
if not state[1] then return { 'absent', 0, 0, 0 } end
if state[1] ~= ARGV[1] then return { 'epoch', 0, 0, 0 } end
local remaining, change = tonumber(state[2]), tonumber(state[3])
if not (remaining and change) then return { 'corrupt', 0, 0, 0 } end

local records, shards, returned = {}, {}, 0
for i = 1, #ARGV - 1 do
  local user, order = string.sub(ARGV[1 + i], 1, 16), string.sub(ARGV[1 + i], 17, 24)
  local before = records[user]
  if before == nil then before = redis.call('HGET', KEYS[1 + i], user) or '' end
  local kept, spent = {}, 0
  for at = #before - RECORD + 1, 1, -RECORD do -- newest first, so that the oldest spent ones go
    local slot, id = string.byte(before, at), string.sub(before, at + 1, at + 8)
    local key = string.sub(before, at + 9, at + 16)
    if slot < 128 and id == order then
      slot = slot + 128
      returned = returned + 1
    end
    if slot < 128 then
      table.insert(kept, 1, string.sub(before, at, at + RECORD - 1))
    elseif key ~= NO_KEY and spent < KEPT then
      spent = spent + 1
      table.insert(kept, 1, string.char(slot) .. id .. key)
    end
  end
  records[user], shards[user] = table.concat(kept), KEYS[1 + i]
end

if returned > 0 then
  for user, record in pairs(records) do
    if record == '' then redis.call('HDEL', shards[user], user)
    else redis.call('HSET', shards[user], user, record) end
  end
  remaining, change = remaining + returned, change + 1
  redis.call('HSET', KEYS[1], 'remaining', remaining, 'change', change)
end
return { 'ok', remaining, change, returned }
