-- Lets the turns of a waiting room begin: as many as the time since the last call allows, at most one for
-- each unit that is left and not spoken for. Any instance may call it, as often as it likes.
--
-- KEYS[1]  the room (hash)
-- KEYS[2]  its turns (string, MessagePack): second in which they began, frontier, began, used; and so on. One value,
--          because a field for each would cost four times as much to read, and this is called five times a second
-- ARGV[1]  32 random bytes: the seed, if this call is the one that draws
-- ARGV[2]  '1' if turns may begin: the sale is open
-- ARGV[3]  epoch, ARGV[4] change, ARGV[5] units left: a reading of the sale; an older one than known is ignored
-- ARGV[6]  turns a second
-- ARGV[7]  how long a turn lasts, in ms
-- ARGV[8]  how many turns there may be at once, in percent of the units left
-- ARGV[9]  when the room is forgotten (Unix ms)
-- ARGV[10+] pairs: a second, and how many turns of that second were used for a purchase since the last call
--
-- Returns { outcome, time in ms, generation, draw_at, joined, early or -1, seed or '', frontier, turns }
--   outcome 'ok', or 'absent': nobody has joined
--   turns   flat: second, frontier, began, used; in the order of their seconds
--
-- The frontier is a place: whoever stands before it has had their turn, or has it. The turns of one second
-- end together, a turn's length after the end of that second.

local KEPT = 30000 -- ms that a turn is remembered after its end: rates are measured over them

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local room = redis.call('HMGET', KEYS[1], 'generation', 'draw_at', 'joined', 'early', 'seed', 'frontier', 'at',
  'credit', 'epoch', 'change', 'remaining')
if not room[1] then return { 'absent', now, '', 0, 0, -1, '', 0, {} } end
local packed = redis.call('GET', KEYS[2])
local known = packed and cmsgpack.unpack(packed) or {}
local draw_at, joined, early, seed = tonumber(room[2]), tonumber(room[3]), tonumber(room[4]), room[5]
local frontier, at, credit = tonumber(room[6]) or 0, tonumber(room[7]), tonumber(room[8]) or 0

if not early and now >= draw_at then
  early = joined
  redis.call('HSET', KEYS[1], 'early', early)
end
if early and not seed then
  -- Only now, when it is settled who is in the draw, does the seed come into being.
  seed, at = ARGV[1], now
  redis.call('HSET', KEYS[1], 'seed', seed, 'at', at)
  redis.call('DEL', KEYS[2]) -- of a room that was lost without its turns
  known = {}
end

local epoch, change, remaining = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local known_epoch, known_change = tonumber(room[9]) or -1, tonumber(room[10]) or -1
if epoch > known_epoch or (epoch == known_epoch and change > known_change) then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'change', ARGV[4], 'remaining', ARGV[5])
else
  remaining = tonumber(room[11]) or remaining
end

local uses = {}
for i = 10, #ARGV, 2 do uses[tonumber(ARGV[i])] = tonumber(ARGV[i + 1]) end

local turn_ms = tonumber(ARGV[7])
local turns, open, changed = {}, 0, false
for i = 1, #known, 4 do
  local second, began, used = known[i], known[i + 2], known[i + 3]
  local ends = (second + 1) * 1000 + turn_ms
  if ends + KEPT >= now then
    if uses[second] then
      used = used + uses[second]
      changed = true
    end
    if ends > now then open = open + math.max(began - used, 0) end
    local at_end = #turns
    turns[at_end + 1], turns[at_end + 2], turns[at_end + 3], turns[at_end + 4] = second, known[i + 1], began, used
  end
end

if seed and at and ARGV[2] == '1' and frontier < joined and remaining > 0 then
  local rate = tonumber(ARGV[6])
  -- A second's worth is the most that may have been saved up while there was nobody or nothing left.
  credit = math.min(credit + rate * math.max(now - at, 0) / 1000, math.max(rate, 1))
  local room_left = math.ceil(remaining * tonumber(ARGV[8]) / 100) - open
  local begin = math.min(math.floor(credit), room_left, joined - frontier)
  if begin > 0 then
    frontier = frontier + begin
    local second, last = math.floor(now / 1000), #turns - 3
    if last < 1 or turns[last] < second then
      last = #turns + 1
      turns[last], turns[last + 1], turns[last + 2], turns[last + 3] = second, 0, 0, 0
    end
    -- A clock that was set back adds to the latest second that there is: seconds and frontiers stay in step.
    turns[last + 1], turns[last + 2] = frontier, turns[last + 2] + begin
    changed = true
    redis.call('HSET', KEYS[1], 'frontier', frontier, 'at', now, 'credit', credit - begin)
    redis.call('PEXPIREAT', KEYS[1], ARGV[9])
  end
end
if changed then
  redis.call('SET', KEYS[2], cmsgpack.pack(turns))
  redis.call('PEXPIREAT', KEYS[2], ARGV[9])
end
return { 'ok', now, room[1], draw_at, joined, early or -1, seed or '', frontier, turns }
