#!lua
-- Declares a warm-up complete, once what is here equals the manifest and balances: WARMING -> READY.
--
-- KEYS 1 meta  2 total  3 stock  4 pending  5 committed
-- ARGV 1 epoch  2 number of SKUs  3 sum of totals
--
-- Returns {code, detail}:
--   SEALED | ALREADY (READY in this epoch) | GATE state | STALE_EPOCH epoch | NOT_WARMED |
--   MISMATCH what | CORRUPT sku (stock + pending + committed is not the total)

local META, TOTAL, STOCK, PENDING, COMMITTED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local EPOCH, SKUS_N, TOTAL_SUM = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local call = redis.call

local meta = call('HMGET', META, 'state', 'epoch', 'seq')
if not meta[1] then return {'NOT_WARMED', ''} end
if meta[2] ~= EPOCH then return {'STALE_EPOCH', meta[2]} end
if meta[1] == 'READY' then return {'ALREADY', ''} end
if meta[1] ~= 'WARMING' then return {'GATE', meta[1]} end

local totals = call('HGETALL', TOTAL)
if #totals / 2 ~= SKUS_N then return {'MISMATCH', 'number of SKUs'} end
if call('HLEN', STOCK) ~= SKUS_N or call('HLEN', PENDING) ~= SKUS_N or call('HLEN', COMMITTED) ~= SKUS_N then
  return {'MISMATCH', 'number of counters'}
end
local sum = 0
for i = 1, #totals, 2 do
  local sku, total = totals[i], tonumber(totals[i + 1])
  local stock = tonumber(call('HGET', STOCK, sku) or '')
  local pending = tonumber(call('HGET', PENDING, sku) or '')
  local committed = tonumber(call('HGET', COMMITTED, sku) or '')
  if not (total and stock and pending and committed) or stock + pending + committed ~= total then
    return {'CORRUPT', sku}
  end
  sum = sum + total
end
if sum ~= TOTAL_SUM then return {'MISMATCH', 'sum of totals'} end

call('HSET', META, 'state', 'READY', 'seq', (tonumber(meta[3] or '0') or 0) + 1)
return {'SEALED', ''}
