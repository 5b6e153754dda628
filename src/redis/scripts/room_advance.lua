-- Lets the turns of a waiting room begin: as many as the time since the last call allows, at most one for
-- each unit that is left and not spoken for. Any instance may call it, as often as it likes.
--
-- KEYS[1]  the room (hash)
-- KEYS[2]  its turns (hash): second in which they began → "frontier began used"
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
local flat = redis.call('HGETALL', KEYS[2])
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
end

local epoch, change, remaining = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local known_epoch, known_change = tonumber(room[9]) or -1, tonumber(room[10]) or -1
if epoch > known_epoch or (epoch == known_epoch and change > known_change) then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'change', ARGV[4], 'remaining', ARGV[5])
else
  remaining = tonumber(room[11]) or remaining
end

local uses = {}
for i = 10, #ARGV, 2 do uses[ARGV[i]] = tonumber(ARGV[i + 1]) end

local turn_ms = tonumber(ARGV[7])
local turns, open, changed, gone = {}, 0, {}, {}
for i = 1, #flat, 2 do
  local second = tonumber(flat[i])
  local ends = (second + 1) * 1000 + turn_ms
  if ends + KEPT < now then
    gone[#gone + 1] = flat[i]
  else
    local stands, began, used = string.match(flat[i + 1], '^(%d+) (%d+) (%d+)$')
    local turn = { second, tonumber(stands), tonumber(began), tonumber(used) }
    if uses[flat[i]] then
      turn[4] = turn[4] + uses[flat[i]]
      changed[second] = turn
    end
    if ends > now then open = open + math.max(turn[3] - turn[4], 0) end
    turns[#turns + 1] = turn
  end
end
table.sort(turns, function(one, other) return one[1] < other[1] end)

if seed and at and ARGV[2] == '1' and frontier < joined and remaining > 0 then
  local rate = tonumber(ARGV[6])
  -- A second's worth is the most that may have been saved up while there was nobody or nothing left.
  credit = math.min(credit + rate * math.max(now - at, 0) / 1000, math.max(rate, 1))
  local room_left = math.ceil(remaining * tonumber(ARGV[8]) / 100) - open
  local begin = math.min(math.floor(credit), room_left, joined - frontier)
  if begin > 0 then
    frontier = frontier + begin
    local second = math.floor(now / 1000)
    local turn = turns[#turns]
    if not turn or turn[1] < second then
      turn = { second, 0, 0, 0 }
      turns[#turns + 1] = turn
    end
    -- A clock that was set back adds to the latest second that there is: seconds and frontiers stay in step.
    turn[2], turn[3] = frontier, turn[3] + begin
    changed[turn[1]] = turn
    redis.call('HSET', KEYS[1], 'frontier', frontier, 'at', now, 'credit', credit - begin)
    redis.call('PEXPIREAT', KEYS[1], ARGV[9])
  end
end
for second, turn in pairs(changed) do
  redis.call('HSET', KEYS[2], string.format('%d', second), string.format('%d %d %d', turn[2], turn[3], turn[4]))
end
if #gone > 0 then redis.call('HDEL', KEYS[2], unpack(gone)) end
if next(changed) then redis.call('PEXPIREAT', KEYS[2], ARGV[9]) end

local told = {}
for _, turn in ipairs(turns) do
  for part = 1, 4 do told[#told + 1] = turn[part] end
end
return { 'ok', now, room[1], draw_at, joined, early or -1, seed or '', frontier, told }
