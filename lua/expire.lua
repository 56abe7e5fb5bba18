#!lua
-- Ends what is kept of an activity: nothing is sold from now on, and all of its keys go at one
-- moment, so that no script ever finds some of them.
--
-- KEYS 1 meta  2 total  3 stock  4 pending  5 committed  6 rsv  7 pend  8 user  9 q  10 b
-- ARGV 1 ms until they go, 0 for at once
--
-- Returns {code, detail}: EXPIRES | GONE (no such activity: no key is created) | BAD_ARG what

local META, TOTAL, STOCK, PENDING, COMMITTED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local RSV, PEND, USER, Q, B = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local GRACE = tonumber(ARGV[1])
local call = redis.call

if not GRACE or GRACE < 0 or GRACE % 1 ~= 0 then return {'BAD_ARG', 'grace'} end
local all = {META, TOTAL, STOCK, PENDING, COMMITTED, RSV, PEND, USER, Q, B}
if GRACE == 0 then
  return {call('DEL', unpack(all)) > 0 and 'EXPIRES' or 'GONE', ''}
end
if call('EXISTS', META) == 0 then
  for _, key in ipairs(all) do call('DEL', key) end
  return {'GONE', ''}
end
call('HSET', META, 'state', 'SEALED')
call('HINCRBY', META, 'seq', 1)
local time = call('TIME')
local at = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + GRACE)
for _, key in ipairs(all) do call('PEXPIREAT', key, at) end
return {'EXPIRES', ''}
