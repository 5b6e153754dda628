-- Ends the older epochs of a sale, so that a rebuild can read the log knowing that it cannot grow.
--
-- KEYS[1] the sale's state
-- ARGV[1] the new epoch
--
-- Returns the epoch that was live, 0 if there was none, -1 if a newer one is live already.
-- Afterwards there is no state: every script answers 'absent' until the new epoch is installed.

local live = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if live >= tonumber(ARGV[1]) then return -1 end
redis.call('DEL', KEYS[1])
return live
