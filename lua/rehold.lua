#!lua
-- Makes the gate agree with orders that are live in the database: what is missing or dead here
-- becomes committed. Stock may go below zero, a debt that later releases repay.
--
-- KEYS 1 meta  2 total  3 stock  4 rsv  5 user  6 committed
-- ARGV for each order: rid, user, fingerprint, number of lines, then sku and quantity of each line
--
-- Returns {seq, code, code, …}, one code per order and in its order:
--   REHELD | REHELD_DEAD (was released or given up) | ALREADY | PENDING (commit it) |
--   UNKNOWN_SKU | CORRUPT | GONE (no such activity: no key is created)

local META, TOTAL, STOCK, RSV, USER, COMMITTED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local ORDERS_MAX, LINES_MAX, QUANTITY_MAX = 256, 20, 1000000000
local call = redis.call

local orders, at, argc = {}, 1, #ARGV
while at <= argc do
  local rid, user, fp, lines_n = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  if not lines_n or lines_n < 1 or lines_n > LINES_MAX or lines_n % 1 ~= 0 or at + 3 + 2 * lines_n > argc then
    return redis.error_reply('BAD_ARG the orders cannot be read')
  end
  if rid == '' or user == '' or string.find(rid, '[|;=]') or string.find(user, '|', 1, true) or string.find(fp, '|', 1, true) then
    return redis.error_reply('BAD_ARG rid, user and fingerprint have no |')
  end
  local order = {rid = rid, user = user, fp = fp, skus = {}, quantities = {}, units = 0, lines = {}}
  for i = at + 4, at + 2 + 2 * lines_n, 2 do
    local sku, q = ARGV[i], tonumber(ARGV[i + 1])
    if not (q and q >= 1 and q <= QUANTITY_MAX and q % 1 == 0) then
      return redis.error_reply('BAD_ARG a quantity is a whole number from 1')
    end
    order.skus[#order.skus + 1], order.quantities[#order.quantities + 1] = sku, q
    order.lines[#order.lines + 1] = sku .. '=' .. q
    order.units = order.units + q
  end
  orders[#orders + 1] = order
  at = at + 4 + 2 * lines_n
end
if #orders == 0 or #orders > ORDERS_MAX then
  return redis.error_reply('BAD_ARG from 1 to 256 orders are allowed')
end

local reply = {0}
if call('EXISTS', META) == 0 then
  for n = 1, #orders do reply[n + 1] = 'GONE' end
  return reply
end
local seq = tonumber(call('HGET', META, 'seq') or '0')
if not seq then return {0, 'CORRUPT'} end

-- Read everything that is written below, so that a wrong type fails before the first write.
call('HLEN', TOTAL)
call('HLEN', STOCK)
call('HLEN', RSV)
call('HLEN', USER)
call('HLEN', COMMITTED)

local records, holders, stock, committed, changed = {}, {}, {}, {}, 0
local function rehold(order)
  local record = records[order.rid] or call('HGET', RSV, order.rid)
  local state = record and string.sub(record, 1, 1)
  if state == 'C' then return 'ALREADY' end
  if state == 'P' then return 'PENDING' end
  for i, sku in ipairs(order.skus) do
    if call('HEXISTS', TOTAL, sku) == 0 then return 'UNKNOWN_SKU' end
    stock[sku] = stock[sku] or tonumber(call('HGET', STOCK, sku) or '')
    committed[sku] = committed[sku] or tonumber(call('HGET', COMMITTED, sku) or '')
    if not (stock[sku] and committed[sku]) then return 'CORRUPT' end
  end
  for i, sku in ipairs(order.skus) do
    stock[sku], committed[sku] = stock[sku] - order.quantities[i], committed[sku] + order.quantities[i]
  end
  local holder = holders[order.user] or call('HGET', USER, order.user)
  holders[order.user] = (holder and (holder .. ';') or '') .. order.rid .. '=' .. order.units
  records[order.rid] = 'C' .. order.user .. '|' .. order.fp .. '|' .. table.concat(order.lines, ';') .. '||'
  changed = changed + 1
  return state and 'REHELD_DEAD' or 'REHELD'
end

for n = 1, #orders do reply[n + 1] = rehold(orders[n]) end

if changed > 0 then
  seq = seq + changed
  for rid, record in pairs(records) do call('HSET', RSV, rid, record) end
  for user, holder in pairs(holders) do call('HSET', USER, user, holder) end
  for sku, n in pairs(stock) do call('HSET', STOCK, sku, n) end
  for sku, n in pairs(committed) do call('HSET', COMMITTED, sku, n) end
  call('HSET', META, 'seq', seq)
end
reply[1] = seq
return reply
