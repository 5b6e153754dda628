-- Judges every waiting buyer of one sale, in arrival order, in one atomic step.
--
-- KEYS[1]   the sale's state (hash)
-- KEYS[2]   the sale's order log (stream)
-- KEYS[2+i] the shard (hash) that buyer i belongs to
-- ARGV[1]   epoch this instance believes in
-- ARGV[2]   the most orders that may wait in the log (high-water mark)
-- ARGV[3]   who writes them to Postgres: '1' this instance, '0' any worker
-- ARGV[4]   '0', or for late orders (accepted under an older epoch, so the window was judged then) the
--           time of their admission in ms, which becomes the time of the log entry
-- ARGV[4+i] buyer i: user id (16 bytes) .. order id (8, big endian) .. idempotency key (8, zeros: none)
--
-- Returns { outcome, time in ms, remaining, admitted, change, stream id or '', verdicts, ids, slots }
--   outcome   'ok', or why nobody was judged: 'absent' (no state), 'epoch', 'corrupt'
--   verdicts  one letter a buyer: A accepted, a accepted earlier by this very attempt,
--             R replay of an idempotency key, D already ordered, S sold out, N not open yet,
--             P paused, E ended, B backlog full
--   ids       8 bytes for every R and D, in order: the order that stands in the way
--   slots     1 byte for every A and a, in order: which of the user's places the order takes (with
--             128 added if its unit was returned since)
--
-- A buyer's record is 17 bytes an order: slot (1; 128 is added once the unit was returned, and the
-- record then only serves replays) .. order id (8) .. idempotency key (8).
--
-- Lua isolates but does not roll back, so everything that can fail (a key of another type, a value
-- that is not a number) is read before the first write.

local RECORD = 17
local NO_KEY = string.rep('\0', 8)

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local state = redis.call('HMGET', KEYS[1],
  'epoch', 'remaining', 'admitted', 'change', 'pending', 'opens', 'closes', 'paused', 'limit')
if not state[1] then return { 'absent', now, 0, 0, 0, '', '', '', '' } end
if state[1] ~= ARGV[1] then return { 'epoch', now, 0, 0, 0, '', '', '', '' } end

local remaining, admitted, change = tonumber(state[2]), tonumber(state[3]), tonumber(state[4])
local pending, opens, closes = tonumber(state[5]), tonumber(state[6]), tonumber(state[7])
local limit = tonumber(state[9])
local log_type = redis.call('TYPE', KEYS[2]).ok
if not (remaining and admitted and change and pending and opens and closes and limit)
  or (log_type ~= 'stream' and log_type ~= 'none') then
  return { 'corrupt', now, 0, 0, 0, '', '', '', '' }
end

-- Why nobody new gets in at this moment, if so. Judged after replays: a retry of an accepted
-- purchase is answered as the first time, even when the sale is over.
local shut, created = false, ARGV[4]
if created == '0' then
  created = now
  if now >= closes then shut = 'E'
  elseif state[8] == '1' then shut = 'P'
  elseif now < opens then shut = 'N' end
end

local room = tonumber(ARGV[2]) - pending
local verdicts, ids, slots = {}, {}, {}
local records = {}    -- user → record as it will be after this batch
local changed, shards = {}, {}  -- users whose records are to be written, and their shards
local accepted = {}   -- log entries

for i = 1, #ARGV - 4 do
  local buyer = ARGV[4 + i]
  local shard = KEYS[2 + i]
  local user, order, key = string.sub(buyer, 1, 16), string.sub(buyer, 17, 24), string.sub(buyer, 25, 32)
  local record = records[user]
  if record == nil then
    record = redis.call('HGET', shard, user) or ''
    records[user] = record
  end

  local verdict, standing = false, false
  local held, taken = 0, nil
  for at = 1, #record, RECORD do
    local slot, id = string.byte(record, at), string.sub(record, at + 1, at + 8)
    if id == order then
      verdict = 'a'
      slots[#slots + 1] = string.char(slot)
      break
    elseif key ~= NO_KEY and string.sub(record, at + 9, at + 16) == key then
      verdict, standing = 'R', id
      break
    end
    if slot < 128 then
      held = held + 1
      taken = taken or {}
      taken[slot] = true
      standing = id
    end
  end

  if not verdict then
    if shut then verdict = shut
    elseif held >= limit then verdict = 'D'
    elseif remaining <= 0 then verdict = 'S'
    elseif room <= 0 then verdict = 'B'
    else
      verdict = 'A'
      local slot = 0
      while taken and taken[slot] do slot = slot + 1 end
      remaining, room = remaining - 1, room - 1
      slot = string.char(slot)
      records[user] = record .. slot .. order .. key
      changed[#changed + 1], shards[#shards + 1] = user, shard
      accepted[#accepted + 1] = buyer .. slot
      slots[#slots + 1] = slot
    end
  end
  if verdict == 'R' or verdict == 'D' then ids[#ids + 1] = standing end
  verdicts[i] = verdict
end

local entry = ''
if #accepted > 0 then
  -- The log first: it is the one write that could still be refused.
  entry = redis.call('XADD', KEYS[2], '*',
    'm', ARGV[1] .. ' ' .. created .. ' ' .. ARGV[3], 'o', table.concat(accepted))
  for i = 1, #changed do
    redis.call('HSET', shards[i], changed[i], records[changed[i]])
  end
  admitted, change = admitted + #accepted, change + 1
  redis.call('HSET', KEYS[1], 'remaining', remaining, 'admitted', admitted, 'change', change,
    'pending', pending + #accepted)
end
return { 'ok', now, remaining, admitted, change, entry, table.concat(verdicts), table.concat(ids),
  table.concat(slots) }
