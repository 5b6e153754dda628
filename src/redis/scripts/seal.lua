-- Ends the older epochs of a sale, so that a rebuild can read the log knowing that it cannot grow.
--
-- KEYS[1] the sale's state
-- ARGV[1] the new epoch
--
-- Returns { epoch, shards } that were live, { 0, 0 } if there was no (readable) state, { -1, 0 } if
-- this or a newer epoch is live already. Afterwards there is no state: every script answers 'absent' until the
-- new epoch is installed.

local state = {}
if redis.call('TYPE', KEYS[1]).ok == 'hash' then
  state = redis.call('HMGET', KEYS[1], 'epoch', 'shards')
end
local live = tonumber(state[1] or '0') or 0
if live >= tonumber(ARGV[1]) then return { -1, 0 } end
redis.call('DEL', KEYS[1])
return { live, tonumber(state[2] or '0') or 0 }
