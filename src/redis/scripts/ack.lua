-- Deletes log entries whose orders are committed in Postgres.
--
-- KEYS[1] the sale's state, KEYS[2] its order log
-- ARGV    pairs of stream id and the number of orders in that entry
--
-- Returns the orders still waiting. Idempotent: only the call that really deletes an entry counts
-- it down, so a writer and a recovery pass may both acknowledge.

local log_type = redis.call('TYPE', KEYS[2]).ok
if log_type == 'none' then return 0 end
local settled = 0
for i = 1, #ARGV, 2 do
  if redis.call('XDEL', KEYS[2], ARGV[i]) == 1 then settled = settled + tonumber(ARGV[i + 1]) end
end
if redis.call('HEXISTS', KEYS[1], 'pending') == 0 then return 0 end
if settled == 0 then return tonumber(redis.call('HGET', KEYS[1], 'pending')) end
return redis.call('HINCRBY', KEYS[1], 'pending', -settled)
