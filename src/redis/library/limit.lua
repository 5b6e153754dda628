-- One request against one limit, by the generic cell rate algorithm (GCRA): a bucket of `burst`
-- requests that refills by one every `interval`, kept as the single time at which it will be full
-- again.
--
-- KEYS[1] the limit of one user or address (string: Unix µs)
-- ARGV[1] interval in µs
-- ARGV[2] burst
--
-- Returns { allowed, left, wait, full }
--   allowed  1, or 0: nothing was taken
--   left     requests that would be allowed now
--   wait     µs until one is, if this one was not
--   full     µs until the bucket is full again
register('limit', function(keys, args)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local interval, burst = tonumber(args[1]), tonumber(args[2])

  local full_at = tonumber(redis.call('GET', keys[1]) or '') or now
  -- After a clock step backwards nobody waits longer than for an empty bucket.
  full_at = math.min(math.max(full_at, now), now + interval * burst)
  local next_full = full_at + interval
  local wait = next_full - interval * burst - now
  if wait > 0 then return { 0, 0, wait, full_at - now } end
  redis.call('SET', keys[1], string.format('%.0f', next_full), 'PX',
      math.ceil((next_full - now) / 1000))
  return { 1, math.floor(-wait / interval), 0, next_full - now }
end)
