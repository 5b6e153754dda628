-- The first step of a loan: takes units out of a bucket, for another bucket of the same sale.
--
-- KEYS[1] the lender's state
-- ARGV    epoch, the borrower's index, how many units it wants
--
-- Returns { outcome, number, amount, remaining, change, lent }
--   'ok'     `amount` units are on their way, in loan `number` to this borrower
--   'open'   that loan is still on its way: nothing more is lent to this borrower until it is settled
--   'dry'    there is nothing to lend
--   'absent', 'epoch', 'corrupt'   the lender's state is not what the caller thinks it is
--
-- What is on its way stands in the lender's own state, written in the same step in which it is taken, so
-- that whoever comes by can finish it: `loan:BORROWER` = "number amount", with amount 0 once it is settled,
-- and `lent`, the sum of the amounts. The numbers of one pair of buckets go up one by one, and at most one of
-- them is open. So the borrower has to remember just one number to receive each loan once, for ever: a
-- process that stood still in the middle of a loan can do no harm when it goes on.
--
-- At least half of what is left is lent, so that a bucket that sells faster than the others has to ask few
-- times; and all that is asked for, as far as it goes, because people are waiting for that.

local field = 'loan:' .. ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'remaining', 'change', 'lent', field)
if not state[1] then return { 'absent', 0, 0, 0, 0, 0 } end
if state[1] ~= ARGV[1] then return { 'epoch', 0, 0, 0, 0, 0 } end
local remaining, change, lent = tonumber(state[2]), tonumber(state[3]), tonumber(state[4] or '0')
local number, open = string.match(state[5] or '0 0', '^(%d+) (%d+)$')
if not (remaining and change and lent and number) then return { 'corrupt', 0, 0, 0, 0, 0 } end
number, open = tonumber(number), tonumber(open)
if open > 0 then return { 'open', number, open, remaining, change, lent } end
if remaining <= 0 then return { 'dry', number, 0, remaining, change, lent } end

local amount = math.max(math.ceil(remaining / 2), math.min(remaining, tonumber(ARGV[3])))
number, remaining, change, lent = number + 1, remaining - amount, change + 1, lent + amount
redis.call('HSET', KEYS[1], 'remaining', remaining, 'change', change, 'lent', lent,
  field, string.format('%d %d', number, amount))
return { 'ok', number, amount, remaining, change, lent }
