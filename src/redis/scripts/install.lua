-- Opens an epoch of a sale: the last step of a rebuild, and of creating a sale.
--
-- KEYS[1] the sale's state, KEYS[2] its order log
-- ARGV    epoch, version, stock, opens (ms), closes (ms), paused (0/1), limit, remaining, admitted,
--         shards
--
-- Returns 'ok'; 'newer' if this or a later epoch is live; 'log' if orders of an older epoch still
-- wait in the log.

local live = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if live >= tonumber(ARGV[1]) then return 'newer' end
if redis.call('XLEN', KEYS[2]) > 0 then return 'log' end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'version', ARGV[2], 'stock', ARGV[3],
  'opens', ARGV[4], 'closes', ARGV[5], 'paused', ARGV[6], 'limit', ARGV[7],
  'remaining', ARGV[8], 'admitted', ARGV[9], 'shards', ARGV[10], 'pending', 0, 'change', 1)
return 'ok'
