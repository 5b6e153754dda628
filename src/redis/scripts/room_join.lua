-- Gives a user their place in the waiting room of a sale, or tells the one that they have.
--
-- KEYS[1] the room (hash)
-- KEYS[2] the shard (hash) of the user: user → generation (8 bytes) .. number
-- ARGV[1] user id (16 bytes)
-- ARGV[2] 'join', or 'look' to be told only
-- ARGV[3] '', or a number whose turn is over: whoever still has it joins anew, behind everybody
-- ARGV[4] when the sale opens (Unix ms): who has joined by then is drawn, who comes later queues behind them
-- ARGV[5] a room that begins after the opening is drawn this many ms after its beginning
-- ARGV[6] when the room is forgotten (Unix ms)
-- ARGV[7] a new room's generation (8 random bytes)
-- ARGV[8] the most numbers that a room gives out
--
-- Returns { outcome, time in ms, generation, number, joined, early or -1, seed or '' }
--   outcome 'ok', 'absent' (who only looks has no place), 'full'
--
-- A number counts arrivals from 0. It is a place in the queue for those who came after the draw; for the
-- others the draw makes a place of it, from a seed that does not exist before (room_advance.lua).
--
-- A room that was lost begins again with another generation; numbers of an older one count for nothing.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local room = redis.call('HMGET', KEYS[1], 'generation', 'draw_at', 'joined', 'early', 'seed')
local entry = redis.call('HGET', KEYS[2], ARGV[1])
local generation, draw_at, joined, early = room[1], tonumber(room[2]), tonumber(room[3]), tonumber(room[4])

local number = generation and entry and string.sub(entry, 1, 8) == generation
  and tonumber(string.sub(entry, 9))
if ARGV[2] ~= 'join' and not number then
  return { 'absent', now, generation or '', 0, joined or 0, early or -1, room[5] or '' }
end

if not generation then
  generation, joined = ARGV[7], 0
  draw_at = tonumber(ARGV[4])
  if now >= draw_at then draw_at = now + tonumber(ARGV[5]) end
  redis.call('HSET', KEYS[1], 'generation', generation, 'draw_at', draw_at, 'joined', 0, 'frontier', 0)
end
if not early and now >= draw_at then
  -- From here on who joins is late. The seed comes later, from an instance.
  early = joined
  redis.call('HSET', KEYS[1], 'early', early)
end
if ARGV[2] == 'join' and (not number or tostring(number) == ARGV[3]) then
  if joined >= tonumber(ARGV[8]) then
    return { 'full', now, generation, 0, joined, early or -1, room[5] or '' }
  end
  number = joined
  joined = joined + 1
  redis.call('HSET', KEYS[1], 'joined', joined)
  redis.call('HSET', KEYS[2], ARGV[1], generation .. string.format('%d', number))
  redis.call('PEXPIREAT', KEYS[1], ARGV[6])
  redis.call('PEXPIREAT', KEYS[2], ARGV[6])
end
return { 'ok', now, generation, number, joined, early or -1, room[5] or '' }
