-- Shared by all functions. The loader sets `VERSION` to a hash of the source: two versions of the
-- program keep their functions side by side on one Redis.

local RECORD, KEPT = 17, 8
local NO_KEY = '\0\0\0\0\0\0\0\0' -- while a library is loaded there is no string.rep

-- 'allow-oom' is for what gives memory back: otherwise a full Redis would refuse that, too.
local function register(name, callback, flags)
  redis.register_function{ function_name = name .. '_' .. VERSION, callback = callback,
      flags = flags or {} }
end

local function unix_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- The approval token: identifies this process, and its last promotion. The run id is new at every
-- start, and the offset changes when a replica becomes the primary. A sale names the process that
-- it was activated in; data that a restart, a promotion or another server brings along names
-- another one.
local run_id
local function token()
  run_id = run_id or string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local info = redis.call('INFO', 'replication')
  -- A plain search: a pattern tried at every place would dominate the cost of a call.
  local _, before = string.find(info, 'second_repl_offset:', 1, true)
  local promoted = before and string.match(info, '^%d+', before + 1)
  return promoted and run_id .. '+' .. promoted or run_id
end

register('process', function()
  local function says(section, words)
    return string.find(redis.call('INFO', section), words, 1, true)
  end
  if says('replication', 'role:slave') then
    return redis.error_reply('READONLY this is a replica')
  end
  -- An evicted buyer could buy twice.
  if not says('memory', 'maxmemory:0') and not says('memory', 'maxmemory_policy:noeviction') then
    return redis.error_reply('EVICTS the maxmemory-policy of Redis has to be noeviction')
  end
  return token()
end, { 'no-writes' })

-- The fields of a sale that this process may sell in this epoch. Otherwise nil and the reason.
local function open_state(key, epoch, ...)
  local state = redis.call('HMGET', key, 'epoch', 'approved', ...)
  if not state[1] then return nil, 'absent' end
  if state[1] ~= epoch then return nil, 'epoch' end
  if state[2] ~= token() then return nil, 'not_approved' end
  for i = 3, #state do
    state[i] = tonumber(state[i])
    if not state[i] then return nil, 'corrupt' end
  end
  return { unpack(state, 3) }
end

-- The buyers of another epoch. The name has the hash tag of the state, so both are on one node.
local function buyers_of(key, epoch)
  return string.format('%s:%d:buyers', key, epoch)
end
