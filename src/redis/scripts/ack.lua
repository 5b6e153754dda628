-- Deletes log entries whose orders are committed in Postgres.
--
-- KEYS[1] the sale's state, KEYS[2] its order log
-- ARGV[1] the epoch in which these orders were written
-- ARGV    from 2 on: pairs of stream id and the number of orders in that entry
--
-- Returns the orders still waiting. Idempotent: only the call that really deletes an entry counts
-- it down, so a writer and a recovery pass may both acknowledge.
--
-- A stream id names an entry only within one epoch. After a loss the log begins anew, by the clock of
-- whichever Redis there is then, and may use an id again that a process still holds from before:
-- deleting by the id alone would take an entry that nobody has written. The epochs keep them apart,
-- since a new one is installed over an empty log only. While the sale is sealed, the log holds what
-- was live before, and whoever builds the new epoch writes it as orders of that one.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'pending', 'sealed', 'sealed_epoch')
local pending = tonumber(state[2] or '0') or 0
local of_this_log = state[1] == ARGV[1]
if not state[1] then of_this_log = state[3] == ARGV[1] or state[4] == ARGV[1] end
if not of_this_log then return pending end
local settled = 0
for i = 2, #ARGV, 2 do
  if redis.call('XDEL', KEYS[2], ARGV[i]) == 1 then settled = settled + tonumber(ARGV[i + 1]) end
end
if not state[2] or settled == 0 then return pending end
return redis.call('HINCRBY', KEYS[1], 'pending', -settled)
