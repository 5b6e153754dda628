-- Opens an epoch of a sale: the last step of a rebuild, and of creating a sale.
--
-- KEYS[1] the sale's state, KEYS[2] its order log
-- ARGV    epoch, version, stock, opens (ms), closes (ms), paused (0/1), limit, remaining, admitted,
--         shards
--
-- Returns 'ok'; 'newer' if this or a later epoch is live, or a later one is being built; 'log' if
-- orders of an older epoch still wait in the log.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'sealed')
local epoch = tonumber(ARGV[1])
if tonumber(state[1] or '0') >= epoch or tonumber(state[2] or '0') > epoch then return 'newer' end
if redis.call('XLEN', KEYS[2]) > 0 then return 'log' end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'version', ARGV[2], 'stock', ARGV[3],
  'opens', ARGV[4], 'closes', ARGV[5], 'paused', ARGV[6], 'limit', ARGV[7],
  'remaining', ARGV[8], 'admitted', ARGV[9], 'shards', ARGV[10], 'pending', 0, 'change', 1)
return 'ok'
