-- Decides on every waiting buyer of one sale, in arrival order, in one atomic step.
--
-- KEYS  the sale's state (hash), its order log (stream), its buyers (hash: user → their orders)
-- ARGV  epoch · the most orders that may wait in the log (high-water mark) · who writes them to
--       Postgres: '1' this instance, '0' any worker · '0', or for readmitted orders the time of
--       their first admission in ms (the window was checked then) · the buyers, 32 bytes each: user
--       id (16) .. order id (8, big endian) .. idempotency key (8, zeros: none)
--
-- Returns { outcome, time in ms, remaining, admitted, revision, stream id or '', verdicts, ids,
--         slots }
--   outcome   'ok', or why nobody was decided on: 'absent', 'epoch', 'not_approved', 'corrupt'
--   verdicts  one letter a buyer: A accepted, a accepted earlier by this very attempt, R replay of
--             an idempotency key, D already ordered, S sold out, N not open yet, P paused, E ended,
--             B backlog full
--   ids       8 bytes for every R and D, in order: the order that was found
--   slots     1 byte for every A and a, in order: which of the user's places the order takes
--             (+128: its unit was returned since)
--
-- A buyer's record is 17 bytes an order: slot (1; +128 once the unit was returned, when it only
-- answers replays) .. order id (8) .. idempotency key (8). Lua does not roll back: everything that
-- can fail (a key of another type, a value that is no number) is read before the first write.

local NONE = {}

-- The user's order that settles this attempt (order id .. key): its verdict and id, or slot.
-- Otherwise the places that are taken.
local function look_up(record, attempt)
  local order, key = string.sub(attempt, 1, 8), string.sub(attempt, 9)
  local held, taken, standing = 0, {}, nil
  for at = 1, #record, RECORD do
    local slot, id = string.byte(record, at), string.sub(record, at + 1, at + 8)
    if id == order then return 'a', nil, string.char(slot) end
    if key ~= NO_KEY and string.sub(record, at + 9, at + 16) == key then return 'R', id end
    if slot < 128 then
      held, standing, taken[slot] = held + 1, id, true
    end
  end
  return nil, standing, nil, held, taken
end

local function closed(created, now, opens, closes, paused)
  if created ~= '0' then return nil end
  if now >= closes then return 'E' end
  if paused == 1 then return 'P' end
  if now < opens then return 'N' end
end

register('admit', function(keys, args)
  local now = unix_ms()
  local state, why = open_state(keys[1], args[1], 'remaining', 'admitted', 'change', 'pending',
      'opens', 'closes', 'paused', 'limit')
  local log = redis.call('TYPE', keys[2]).ok
  if state and log ~= 'stream' and log ~= 'none' then why = 'corrupt' end
  if why then return { why, now, 0, 0, 0, '', '', '', '' } end
  local remaining, admitted, change, pending, opens, closes, paused, limit = unpack(state)
  -- Checked after replays: a retry of an accepted purchase gets its first answer, even when the
  -- sale is over.
  local refusal = closed(args[4], now, opens, closes, paused)
  local room = tonumber(args[2]) - pending

  -- Strings are the main cost of a call: a new buyer makes three.
  local sub, char = string.sub, string.char
  local buyers, users = args[5], {}
  local count = #buyers / 32
  for i = 1, count do users[i] = sub(buyers, i * 32 - 31, i * 32 - 16) end
  local found = redis.call('HMGET', keys[3], unpack(users))
  local records, written, entries, taken_now = {}, {}, {}, 0
  local verdicts, ids, slots = {}, {}, {}
  for i = 1, count do
    local user = users[i]
    local record = records[user] or found[i] or ''
    local attempt = sub(buyers, i * 32 - 15, i * 32)
    local verdict, standing, slot, held, taken = nil, nil, nil, 0, NONE
    if record ~= '' then verdict, standing, slot, held, taken = look_up(record, attempt) end
    if not verdict then
      if refusal then verdict = refusal
      elseif held >= limit then verdict = 'D'
      elseif remaining <= 0 then verdict = 'S'
      elseif room <= 0 then verdict = 'B'
      else
        verdict, slot = 'A', 0
        while taken[slot] do slot = slot + 1 end
        slot = char(slot)
        remaining, room = remaining - 1, room - 1
        record = record .. slot .. attempt
        records[user] = record
        local at = 2 * taken_now
        written[at + 1], written[at + 2] = user, record
        at = at + taken_now
        entries[at + 1], entries[at + 2], entries[at + 3] = user, attempt, slot
        taken_now = taken_now + 1
      end
    end
    if slot then slots[#slots + 1] = slot end
    if verdict == 'R' or verdict == 'D' then ids[#ids + 1] = standing end
    verdicts[i] = verdict
  end

  local entry = ''
  if taken_now > 0 then
    local created = args[4] == '0' and string.format('%d', now) or args[4]
    -- The log first: only this write can still be refused.
    entry = redis.call('XADD', keys[2], '*', 'm', args[1] .. ' ' .. created .. ' ' .. args[3], 'o',
        table.concat(entries))
    -- A user who bought twice is in it twice; the last record has both orders. In slices: `unpack`
    -- takes at most 8,000 values, and nothing may fail from here on.
    for at = 1, #written, 4000 do
      redis.call('HSET', keys[3], unpack(written, at, math.min(at + 3999, #written)))
    end
    admitted, change = admitted + taken_now, change + 1
    redis.call('HSET', keys[1], 'remaining', remaining, 'admitted', admitted, 'change', change,
        'pending', pending + taken_now)
  end
  return { 'ok', now, remaining, admitted, change, entry, table.concat(verdicts),
      table.concat(ids), table.concat(slots) }
end)
