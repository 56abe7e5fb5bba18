#!lua
-- Brings an activity's stock and terms into Redis, whole or not at all. Counters that are there
-- already are kept: a warm-up never puts sold stock back.
--
-- KEYS 1 meta  2 total  3 stock  4 pending  5 committed  6 rsv  7 pend  8 user
-- ARGV 1 epoch  2 opens_at_ms  3 closes_at_ms  4 orders_max per user  5 units_max per user
--      6 pend_max  7… sku, total, sku, total, …
--
-- Returns {code, detail}; after WARMED and KEPT the state is WARMING:
--   WARMED | KEPT (was there; terms and epoch renewed) | GATE OPEN | STALE_EPOCH epoch |
--   MISMATCH sku (the totals here are others) | BAD_ARG what

local META, TOTAL, STOCK, PENDING, COMMITTED, RSV, PEND, USER =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local EPOCH, OPENS_AT, CLOSES_AT, ORDERS_MAX, UNITS_MAX, PEND_MAX =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local SKUS_MAX, STOCK_MAX = 1000, 1000000000
local call = redis.call

for i = 1, 6 do
  if not string.find(ARGV[i] or '', '^%d+$') then return {'BAD_ARG', 'argument ' .. i} end
end
if tonumber(OPENS_AT) >= tonumber(CLOSES_AT) then return {'BAD_ARG', 'closes_at'} end
local manifest, skus = {}, {}
for i = 7, #ARGV, 2 do
  local sku, n = ARGV[i], ARGV[i + 1]
  if sku == '' or string.find(sku, '[|;=]') or manifest[sku] then return {'BAD_ARG', sku} end
  if not string.find(n or '', '^%d+$') or tonumber(n) < 1 or tonumber(n) > STOCK_MAX then return {'BAD_ARG', sku} end
  manifest[sku] = tonumber(n)
  skus[#skus + 1] = sku
end
if #skus == 0 or #skus > SKUS_MAX then return {'BAD_ARG', 'number of SKUs'} end

-- Read every key, so that a wrong type fails before the first write.
local meta = call('HMGET', META, 'state', 'epoch', 'seq')
local there = call('HLEN', TOTAL) + call('HLEN', STOCK) + call('HLEN', PENDING) + call('HLEN', COMMITTED)
  + call('HLEN', RSV) + call('ZCARD', PEND) + call('HLEN', USER)
if meta[1] == 'OPEN' then return {'GATE', 'OPEN'} end
if meta[2] and tonumber(meta[2]) > tonumber(EPOCH) then return {'STALE_EPOCH', meta[2]} end

local code = 'WARMED'
if there > 0 then
  if call('HLEN', TOTAL) ~= #skus then return {'MISMATCH', 'number of SKUs'} end
  for _, sku in ipairs(skus) do
    if tonumber(call('HGET', TOTAL, sku) or '') ~= manifest[sku] then return {'MISMATCH', sku} end
  end
  code = 'KEPT'
else
  -- Nobody's entry, of no orders: its length makes the hash a table from the start. As a list it is
  -- searched from end to end.
  call('HSET', USER, '', string.rep(';', 65))
  for _, sku in ipairs(skus) do
    call('HSET', TOTAL, sku, manifest[sku])
    call('HSET', STOCK, sku, manifest[sku])
    call('HSET', PENDING, sku, 0)
    call('HSET', COMMITTED, sku, 0)
  end
end
-- What each call reads and writes comes first: this hash is searched from its beginning.
call('HSET', META, 'seq', (tonumber(meta[3] or '0') or 0) + 1, 'state', 'WARMING', 'epoch', EPOCH, 'pend_max', PEND_MAX,
  'opens_at', OPENS_AT, 'closes_at', CLOSES_AT, 'orders_max', ORDERS_MAX, 'units_max', UNITS_MAX)
return {code, ''}
