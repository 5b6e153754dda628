-- The second step of a loan: puts its units into the borrower, once.
--
-- KEYS[1] the borrower's state
-- ARGV    epoch, the lender's index, the loan's number, its amount
--
-- Returns { outcome, remaining, change, lent }: 'ok', 'before' if this loan had been received already, or
-- 'absent', 'epoch', 'corrupt'. `got:LENDER` is the number of the last loan received from that bucket; they
-- come one by one (see lend.lua), so a gap is nothing that the program writes.

local field = 'got:' .. ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'remaining', 'change', 'lent', field)
if not state[1] then return { 'absent', 0, 0, 0 } end
if state[1] ~= ARGV[1] then return { 'epoch', 0, 0, 0 } end
local remaining, change, lent = tonumber(state[2]), tonumber(state[3]), tonumber(state[4] or '0')
local got, number = tonumber(state[5] or '0'), tonumber(ARGV[3])
if not (remaining and change and lent and got) then return { 'corrupt', 0, 0, 0 } end
if number <= got then return { 'before', remaining, change, lent } end
if number > got + 1 then return { 'corrupt', 0, 0, 0 } end

remaining, change = remaining + tonumber(ARGV[4]), change + 1
redis.call('HSET', KEYS[1], 'remaining', remaining, 'change', change, field, ARGV[3])
return { 'ok', remaining, change, lent }
