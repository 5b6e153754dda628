-- A reentrant lock that counts, as the course notes show it.
--
-- KEYS[1] the lock: a hash, owner -> count
-- ARGV[1] owner
-- ARGV[2] lease in ms
--
-- Returns nil: ours · the ms left of somebody else's.

if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  --= FLAW An attempt that comes again, because its reply was lost, counts again.
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return nil
end
return redis.call('PTTL', KEYS[1])
