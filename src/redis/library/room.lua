-- Gives a user a place in the waiting room of a sale, or reads the one that they have.
--
-- KEYS[1] the room (hash)
-- KEYS[2] the shard (hash) of the user: user → generation (8 bytes) .. number
-- ARGV[1] user id (16 bytes)
-- ARGV[2] 'join', or 'read' for the place that the user has
-- ARGV[3] '', or a number whose turn is over: a user who still has it joins anew, behind everybody
-- ARGV[4] when the sale opens (Unix ms): users who joined by then are drawn, later ones queue
-- ARGV[5] a room that begins after the opening is drawn this many ms after its beginning
-- ARGV[6] when the room is forgotten (Unix ms)
-- ARGV[7] a new room's generation (8 random bytes)
-- ARGV[8] the most numbers that a room gives out
--
-- Returns { outcome, time in ms, generation, number, joined, early or -1, seed or '' }
--   outcome 'ok', 'absent' (a user who asked with 'read' has no place), 'full'
--
-- A number counts arrivals from 0. It is the place in the queue of users who join after the draw;
-- the draw makes places of the earlier ones, from a seed that does not exist before (room_advance).
--
-- A room that was lost begins again with another generation; older numbers are void.
register('room_join', function(keys, args)
  local now = unix_ms()

  local room = redis.call('HMGET', keys[1], 'generation', 'draw_at', 'joined', 'early', 'seed')
  local entry = redis.call('HGET', keys[2], args[1])
  local generation, draw_at, joined, early = room[1], tonumber(room[2]), tonumber(room[3]),
      tonumber(room[4])

  local number = generation and entry and string.sub(entry, 1, 8) == generation
    and tonumber(string.sub(entry, 9))
  if args[2] ~= 'join' and not number then
    return { 'absent', now, generation or '', 0, joined or 0, early or -1, room[5] or '' }
  end

  if not generation then
    generation, joined = args[7], 0
    draw_at = tonumber(args[4])
    if now >= draw_at then draw_at = now + tonumber(args[5]) end
    redis.call('HSET', keys[1], 'generation', generation, 'draw_at', draw_at, 'joined', 0,
        'frontier', 0)
  end
  if not early and now >= draw_at then
    -- Later arrivals queue. The seed comes later, from an instance.
    early = joined
    redis.call('HSET', keys[1], 'early', early)
  end
  if args[2] == 'join' and (not number or tostring(number) == args[3]) then
    if joined >= tonumber(args[8]) then
      return { 'full', now, generation, 0, joined, early or -1, room[5] or '' }
    end
    number = joined
    joined = joined + 1
    redis.call('HSET', keys[1], 'joined', joined)
    redis.call('HSET', keys[2], args[1], generation .. string.format('%d', number))
    redis.call('PEXPIREAT', keys[1], args[6])
    redis.call('PEXPIREAT', keys[2], args[6])
  end
  return { 'ok', now, generation, number, joined, early or -1, room[5] or '' }
end)

local TURN_KEPT = 30000 -- ms that a turn is remembered after its end: rates are measured over them

-- The turns that are still remembered, with those `uses` added (second → how many); how many are
-- neither over nor used; whether a use was added.
local function count_turns(known, uses, now, turn_ms)
  local turns, open, changed = {}, 0, false
  for i = 1, #known, 4 do
    local second, began, used = known[i], known[i + 2], known[i + 3]
    local ends = (second + 1) * 1000 + turn_ms
    if ends + TURN_KEPT >= now then
      if uses[second] then
        used = used + uses[second]
        changed = true
      end
      if ends > now then open = open + math.max(began - used, 0) end
      local at_end = #turns
      turns[at_end + 1], turns[at_end + 2], turns[at_end + 3], turns[at_end + 4] = second,
          known[i + 1], began, used
    end
  end
  return turns, open, changed
end

-- Begins turns in a waiting room: as many as the time since the last call allows, and at most one
-- for each unit that is left and not spoken for. Any instance may call it at any time.
--
-- KEYS[1]  the room (hash)
-- KEYS[2]  its turns (string, MessagePack): second in which they began, frontier, began, used; and
--          so on. One value: fields would cost four times as much to read, five times a second
-- ARGV[1]  32 random bytes: the seed, if this call draws
-- ARGV[2]  '1' if turns may begin: the sale is open
-- ARGV[3]  epoch, ARGV[4] revision, ARGV[5] units left: a snapshot of the sale; an older one than
--          known is ignored
-- ARGV[6]  turns a second
-- ARGV[7]  how long a turn lasts, in ms
-- ARGV[8]  how many turns there may be at once, in percent of the units left
-- ARGV[9]  when the room is forgotten (Unix ms)
-- ARGV[10+] pairs: a second, and how many of its turns were used for a purchase since the last call
--
-- Returns { outcome, time in ms, generation, draw_at, joined, early or -1, seed or '', frontier,
--           turns }
--   outcome 'ok', or 'absent': nobody has joined
--   turns   flat: second, frontier, began, used; in the order of their seconds
--
-- The frontier is a place: users before it have had their turn, or have it. The turns of one
-- second end together, a turn's length after the end of that second.
register('room_advance', function(keys, args)
  local now = unix_ms()
  local room = redis.call('HMGET', keys[1], 'generation', 'draw_at', 'joined', 'early', 'seed',
      'frontier', 'at', 'credit', 'epoch', 'change', 'remaining')
  if not room[1] then return { 'absent', now, '', 0, 0, -1, '', 0, {} } end
  local packed = redis.call('GET', keys[2])
  local known = packed and cmsgpack.unpack(packed) or {}
  local draw_at, joined, early, seed = tonumber(room[2]), tonumber(room[3]), tonumber(room[4]),
      room[5]
  local frontier, at, credit = tonumber(room[6]) or 0, tonumber(room[7]), tonumber(room[8]) or 0

  if not early and now >= draw_at then
    early = joined
    redis.call('HSET', keys[1], 'early', early)
  end
  if early and not seed then
    -- The seed is made only after the set of participants is fixed.
    seed, at = args[1], now
    redis.call('HSET', keys[1], 'seed', seed, 'at', at)
    redis.call('DEL', keys[2]) -- turns of a room that was lost
    known = {}
  end

  local epoch, change, remaining = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local known_epoch, known_change = tonumber(room[9]) or -1, tonumber(room[10]) or -1
  if epoch > known_epoch or (epoch == known_epoch and change > known_change) then
    redis.call('HSET', keys[1], 'epoch', args[3], 'change', args[4], 'remaining', args[5])
  else
    remaining = tonumber(room[11]) or remaining
  end

  local uses = {}
  for i = 10, #args, 2 do uses[tonumber(args[i])] = tonumber(args[i + 1]) end

  local turns, open, changed = count_turns(known, uses, now, tonumber(args[7]))

  if seed and at and args[2] == '1' and frontier < joined and remaining > 0 then
    local rate = tonumber(args[6])
    -- At most a second's worth accumulates while nobody waits or nothing is left.
    credit = math.min(credit + rate * math.max(now - at, 0) / 1000, math.max(rate, 1))
    local room_left = math.ceil(remaining * tonumber(args[8]) / 100) - open
    local begin = math.min(math.floor(credit), room_left, joined - frontier)
    if begin > 0 then
      frontier = frontier + begin
      local second, last = math.floor(now / 1000), #turns - 3
      if last < 1 or turns[last] < second then
        last = #turns + 1
        turns[last], turns[last + 1], turns[last + 2], turns[last + 3] = second, 0, 0, 0
      end
      -- After a clock step backwards turns are added to the latest second: seconds and frontiers
      -- stay in step.
      turns[last + 1], turns[last + 2] = frontier, turns[last + 2] + begin
      changed = true
      redis.call('HSET', keys[1], 'frontier', frontier, 'at', now, 'credit', credit - begin)
      redis.call('PEXPIREAT', keys[1], args[9])
    end
  end
  if changed then
    redis.call('SET', keys[2], cmsgpack.pack(turns))
    redis.call('PEXPIREAT', keys[2], args[9])
  end
  return { 'ok', now, room[1], draw_at, joined, early or -1, seed or '', frontier, turns }
end)
