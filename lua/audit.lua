#!lua flags=no-writes
-- Reads one consistent picture of the gate's counters, in time proportional to the number of SKUs.
--
-- KEYS 1 meta  2 total  3 stock  4 pending  5 committed  6 pend
-- ARGV none
--
-- Returns {seq, epoch, state, number of holds, sku, total, stock, pending, committed, sku, …}, all
-- texts; a counter that is missing is ''. The state is '' when the activity was never warmed.

local META, TOTAL, STOCK, PENDING, COMMITTED, PEND = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local call = redis.call

local meta = call('HMGET', META, 'seq', 'epoch', 'state')
local reply = {meta[1] or '0', meta[2] or '0', meta[3] or '', tostring(call('ZCARD', PEND))}
local totals = call('HGETALL', TOTAL)
for i = 1, #totals, 2 do
  local sku, n = totals[i], #reply
  reply[n + 1], reply[n + 2] = sku, totals[i + 1]
  reply[n + 3] = call('HGET', STOCK, sku) or ''
  reply[n + 4] = call('HGET', PENDING, sku) or ''
  reply[n + 5] = call('HGET', COMMITTED, sku) or ''
end
return reply
