#!lua
-- Takes stock for a batch of orders: dedupe, purchase limit, deduct and hold record in one step.
--
-- Stamped: activity, epoch and run_id stand in this text, so its SHA names one opening of one gate
-- on one Redis. It is loaded by whoever opened the gate and called by EVALSHA only; NOSCRIPT means
-- "this is not the Redis that was opened".
-- stamp @ACTIVITY@ @EPOCH@ @RUN_ID@
--
-- KEYS 1 meta  2 stock  3 rsv  4 pend  5 user  6 pending
-- ARGV for each order: rid, user, fingerprint, number of lines, then sku and quantity of each line
--
-- Returns {seq, answer, answer, …}, one answer per order and in its order. Every order of a batch
-- is decided on its own, after those before it.
--   {'OK', left}           held; left of its first SKU
--   {'REPLAY', state, left} seen before; state P, C or R; left as it was then, -1 if not recorded
--   {'SOLD_OUT', sku, left}
--   {'USER_LIMIT', rid}    rid of a live order of the user, '' when this order alone is too large
--   {'NOT_OPEN', opens_at_ms}  {'ENDED', closes_at_ms}  {'GATE', state}  {'STALE_EPOCH', epoch}
--   {'UNKNOWN_SKU', sku}   {'FP_MISMATCH'}  {'ABANDONED'}  {'BAD_ARG'}
--   {'FULL', holds}        too many holds wait for their booking
-- or {0, {'NOT_WARMED'}} or {seq, {'CORRUPT', what}} for the batch as a whole; then nothing is written.
--
-- A record of rsv is state user|fingerprint|lines|left|reason, lines being sku=n;sku=n.
-- An entry of user is rid=units;rid=units, the user's live orders.

local META, STOCK, RSV, PEND, USER, PENDING = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local EPOCH = '@EPOCH@'
local ORDERS_MAX, LINES_MAX, QUANTITY_MAX, TEXT_MAX = 256, 20, 1000000000, 64
local call, find, sub = redis.call, string.find, string.sub

local meta = call('HMGET', META, 'state', 'epoch', 'opens_at', 'closes_at', 'orders_max', 'units_max', 'pend_max', 'seq')
if not meta[1] then return {0, {'NOT_WARMED'}} end
local opens_at, closes_at = tonumber(meta[3]), tonumber(meta[4])
local orders_max, units_max, pend_max = tonumber(meta[5]), tonumber(meta[6]), tonumber(meta[7])
local seq = tonumber(meta[8])
if not (opens_at and closes_at and orders_max and units_max and pend_max and seq) then
  return {seq or 0, {'CORRUPT', 'meta'}}
end

-- Read the arguments; a batch that cannot be read as a whole is refused as a whole.
local orders, rids, users, skus, sku_at = {}, {}, {}, {}, {}
local at, argc = 1, #ARGV
while at <= argc do
  local rid, user, fp, lines_n = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  if not lines_n or lines_n < 1 or lines_n > LINES_MAX or lines_n % 1 ~= 0 or at + 3 + 2 * lines_n > argc then
    return {seq, {'BAD_ARG'}}
  end
  -- `|`, `;` and `=` delimit the records.
  local ok = #rid > 0 and #rid <= TEXT_MAX and #user > 0 and #user <= TEXT_MAX and #fp > 0 and #fp <= TEXT_MAX
    and not find(rid, '=', 1, true) and not find(rid, ';', 1, true)
    and not find(user, '|', 1, true) and not find(fp, '|', 1, true)
  local lines, units, seen = '', 0, nil
  local first = at + 4
  for i = first, first + 2 * (lines_n - 1), 2 do
    local sku, q = ARGV[i], tonumber(ARGV[i + 1])
    if not (q and q >= 1 and q <= QUANTITY_MAX and q % 1 == 0) then
      ok = false
      break
    end
    if lines_n > 1 then
      seen = seen or {}
      if seen[sku] then ok = false end
      seen[sku] = true
    end
    if not sku_at[sku] then
      skus[#skus + 1] = sku
      sku_at[sku] = #skus
    end
    lines = (i == first) and (sku .. '=' .. q) or (lines .. ';' .. sku .. '=' .. q)
    units = units + q
  end
  local n = #orders + 1
  if n > ORDERS_MAX then return {seq, {'BAD_ARG'}} end
  orders[n] = {ok, first, lines_n, user .. '|' .. fp .. '|' .. lines .. '|', units}
  rids[n], users[n] = rid, user
  at = first + 2 * lines_n
end
if #orders == 0 then return {seq, {'BAD_ARG'}} end
if #skus == 0 then skus[1] = '' end

-- Read everything that is written below, so that a wrong type fails before the first write.
local records = call('HMGET', RSV, unpack(rids))
local holders = call('HMGET', USER, unpack(users))
local stock = call('HMGET', STOCK, unpack(skus))
local pending = call('HMGET', PENDING, unpack(skus))
local holds = call('ZCARD', PEND)
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for i = 1, #skus do
  if stock[i] then
    stock[i], pending[i] = tonumber(stock[i]), tonumber(pending[i] or '')
    if not (stock[i] and pending[i]) then return {seq, {'CORRUPT', skus[i]}} end
  end
end

local gate
if meta[2] ~= EPOCH then gate = {'STALE_EPOCH', meta[2]}
elseif meta[1] ~= 'OPEN' then gate = {'GATE', meta[1]}
elseif now < opens_at then gate = {'NOT_OPEN', opens_at}
elseif now >= closes_at then gate = {'ENDED', closes_at} end

-- Decide; `new_*` is what earlier orders of this batch did to the same rid or user.
local new_record, new_holder, set_rsv, add_pend, set_user, touched = {}, {}, {}, {}, {}, {}
local function decide(n)
  local order, rid, user = orders[n], rids[n], users[n]
  if not order[1] then return {'BAD_ARG'} end
  local body = order[4]
  local record = new_record[rid] or records[n]
  if record then
    local state = sub(record, 1, 1)
    if state == 'X' then return {'ABANDONED'} end
    if sub(record, 2, #body + 1) ~= body then return {'FP_MISMATCH'} end
    return {'REPLAY', state, tonumber(string.match(record, '^(%d+)|', #body + 2)) or -1}
  end
  if gate then return gate end
  local holder = new_holder[user] or holders[n]
  local units = order[5]
  if holder then
    local orders_n, units_n, last = 0, 0, ''
    for held_rid, held_units in string.gmatch(holder, '([^;=]+)=(%d+)') do
      orders_n, units_n, last = orders_n + 1, units_n + tonumber(held_units), held_rid
    end
    if orders_n + 1 > orders_max or units_n + units > units_max then return {'USER_LIMIT', last} end
  elseif orders_max < 1 or units > units_max then
    return {'USER_LIMIT', ''}
  end
  local first, last = order[2], order[2] + 2 * (order[3] - 1)
  for i = first, last, 2 do
    local have = stock[sku_at[ARGV[i]]]
    if not have then return {'UNKNOWN_SKU', ARGV[i]} end
    if have < tonumber(ARGV[i + 1]) then return {'SOLD_OUT', ARGV[i], have < 0 and 0 or have} end
  end
  if holds >= pend_max then return {'FULL', holds} end

  for i = first, last, 2 do
    local k, q = sku_at[ARGV[i]], tonumber(ARGV[i + 1])
    stock[k], pending[k], touched[k] = stock[k] - q, pending[k] + q, true
  end
  local left = stock[sku_at[ARGV[first]]]
  record = 'P' .. body .. left .. '|'
  holder = (holder and (holder .. ';') or '') .. rid .. '=' .. units
  new_record[rid], new_holder[user] = record, holder
  local w = #set_rsv
  set_rsv[w + 1], set_rsv[w + 2] = rid, record
  set_user[w + 1], set_user[w + 2] = user, holder
  add_pend[w + 1], add_pend[w + 2] = now, rid
  holds = holds + 1
  return {'OK', left}
end

local reply = {seq}
for n = 1, #orders do reply[n + 1] = decide(n) end

if #set_rsv > 0 then
  local set_stock, set_pending, w = {}, {}, 0
  for k in pairs(touched) do
    set_stock[w + 1], set_stock[w + 2] = skus[k], stock[k]
    set_pending[w + 1], set_pending[w + 2] = skus[k], pending[k]
    w = w + 2
  end
  seq = seq + #set_rsv / 2
  call('HSET', RSV, unpack(set_rsv))
  call('ZADD', PEND, unpack(add_pend))
  call('HSET', USER, unpack(set_user))
  call('HSET', STOCK, unpack(set_stock))
  call('HSET', PENDING, unpack(set_pending))
  call('HSET', META, 'seq', seq)
  reply[1] = seq
end
return reply
