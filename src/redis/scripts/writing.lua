-- Notes that a rebuild is about to write the buyers of the epoch that the sale is sealed for, so that the
-- next one knows what to remove if this one does not come to its end.
--
-- KEYS[1] the sale's state
-- ARGV    epoch, into how many shards its buyers are spread
--
-- Returns 'ok'; 'newer' if a later epoch is live or being built, or this one is live; 'unsealed' if the
-- seal is gone.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'sealed')
local epoch = tonumber(ARGV[1])
local sealed = tonumber(state[2] or '0')
if tonumber(state[1] or '0') >= epoch or sealed > epoch then return 'newer' end
if sealed ~= epoch then return 'unsealed' end
redis.call('HSET', KEYS[1], 'written', ARGV[1], 'written_shards', ARGV[2])
return 'ok'
