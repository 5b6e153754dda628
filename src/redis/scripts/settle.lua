-- The last step of a loan: the lender forgets what it lent. Only for a loan that the borrower has received.
--
-- KEYS[1] the lender's state
-- ARGV    epoch, the borrower's index, the loan's number
--
-- Returns { outcome, remaining, change, lent }: 'ok', also if it was settled already, or 'absent', 'epoch',
-- 'corrupt'. The number stays (see lend.lua).

local field = 'loan:' .. ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'remaining', 'change', 'lent', field)
if not state[1] then return { 'absent', 0, 0, 0 } end
if state[1] ~= ARGV[1] then return { 'epoch', 0, 0, 0 } end
local remaining, change, lent = tonumber(state[2]), tonumber(state[3]), tonumber(state[4] or '0')
local number, open = string.match(state[5] or '0 0', '^(%d+) (%d+)$')
if not (remaining and change and lent and number) then return { 'corrupt', 0, 0, 0 } end
if number == ARGV[3] and open ~= '0' then
  change, lent = change + 1, lent - tonumber(open)
  redis.call('HSET', KEYS[1], 'change', change, 'lent', lent, field, number .. ' 0')
end
return { 'ok', remaining, change, lent }
