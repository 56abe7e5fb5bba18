#!lua
-- Takes stock for a batch of orders: dedupe, purchase limit, deduct and hold record in one step.
--
-- Stamped: activity, epoch and run_id stand in this text, so its SHA names one opening of one gate
-- on one Redis. It is loaded by whoever opened the gate and called by EVALSHA only; NOSCRIPT means
-- "this is not the Redis that was opened".
-- stamp @ACTIVITY@ @EPOCH@ @RUN_ID@
--
-- KEYS 1 meta  2 stock  3 rsv  4 pend  5 user  6 pending  7 q (only for holds that are booked
--      later: each is handed to the booking workers by an entry of this stream)
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
-- A record of rsv is state user|fingerprint|lines|left|reason, lines being sku=n;sku=n; that of a
-- hold that is booked later is state user|fingerprint|lines|left|accepted_at_ms|reason.
-- An entry of user is rid=units;rid=units, the user's live orders.

local META, STOCK, RSV, PEND, USER, PENDING, Q = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local EPOCH = '@EPOCH@'
local ORDERS_MAX, LINES_MAX, DIGITS_MAX, TEXT_MAX = 256, 20, 9, 64
-- The stream is a wake-up and pend the truth, so it may forget what nobody reads.
local ENTRIES_MAX = 20000
local call, find, sub = redis.call, string.find, string.sub

local meta = call('HMGET', META, 'state', 'epoch', 'opens_at', 'closes_at', 'orders_max', 'units_max', 'pend_max', 'seq')
if not meta[1] then return {0, {'NOT_WARMED'}} end
local opens_at, closes_at = tonumber(meta[3]), tonumber(meta[4])
local orders_max, units_max, pend_max = tonumber(meta[5]), tonumber(meta[6]), tonumber(meta[7])
local seq = tonumber(meta[8])
if not (opens_at and closes_at and orders_max and units_max and pend_max and seq) then
  return {seq or 0, {'CORRUPT', 'meta'}}
end

-- Read the arguments; a batch that cannot be read as a whole is refused as a whole. Numbers are
-- kept as the texts they came in where they can be: writing a number costs as much as a lookup.
local n, rids, users, bodies, units, firsts, counts = 0, {}, {}, {}, {}, {}, {}
local skus, sku_at = {}, {}
local at, argc = 1, #ARGV
while at <= argc do
  local rid, user, fp, count = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  if not count or count < 1 or count > LINES_MAX or count % 1 ~= 0 or at + 3 + 2 * count > argc then
    return {seq, {'BAD_ARG'}}
  end
  n = n + 1
  if n > ORDERS_MAX then return {seq, {'BAD_ARG'}} end
  -- `|`, `;` and `=` delimit the records.
  local ok = #rid > 0 and #rid <= TEXT_MAX and #user > 0 and #user <= TEXT_MAX and #fp > 0 and #fp <= TEXT_MAX
    and not find(rid, '=', 1, true) and not find(rid, ';', 1, true)
    and not find(user, '|', 1, true) and not find(fp, '|', 1, true)
  local first = at + 4
  local lines, sum, seen = nil, 0, count > 1 and {} or nil
  for i = first, first + 2 * (count - 1), 2 do
    local sku, text = ARGV[i], ARGV[i + 1]
    if not find(text, '^[1-9]%d*$') or #text > DIGITS_MAX then ok = false end
    if seen then
      if seen[sku] then ok = false end
      seen[sku] = true
    end
    if not sku_at[sku] then
      skus[#skus + 1] = sku
      sku_at[sku] = #skus
    end
    lines = lines and (lines .. ';' .. sku .. '=' .. text) or (sku .. '=' .. text)
    sum = ok and sum + tonumber(text) or 0
  end
  rids[n], users[n], firsts[n], counts[n], units[n] = rid, user, first, count, sum
  bodies[n] = ok and (user .. '|' .. fp .. '|' .. lines .. '|')
  at = first + 2 * count
end
if n == 0 then return {seq, {'BAD_ARG'}} end

-- Read everything that is written below, so that a wrong type fails before the first write.
local records = call('HMGET', RSV, unpack(rids))
local holders = call('HMGET', USER, unpack(users))
local stock = call('HMGET', STOCK, unpack(skus))
local pending = call('HMGET', PENDING, unpack(skus))
local holds = call('ZCARD', PEND)
if Q then call('XLEN', Q) end
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_text = now .. ''
local tail = Q and ('|' .. now_text .. '|') or '|'
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
local new_record, new_holder, set_rsv, add_pend, set_user, touched, w = {}, {}, {}, {}, {}, {}, 0
local function decide(n)
  local body, rid, user = bodies[n], rids[n], users[n]
  if not body then return {'BAD_ARG'} end
  local record = new_record[rid] or records[n]
  if record then
    local state = sub(record, 1, 1)
    if state == 'X' then return {'ABANDONED'} end
    if sub(record, 2, #body + 1) ~= body then return {'FP_MISMATCH'} end
    return {'REPLAY', state, tonumber(string.match(record, '^(%d+)|', #body + 2)) or -1}
  end
  if gate then return gate end
  local holder, sum = new_holder[user] or holders[n], units[n]
  if holder then
    local orders_n, units_n, last = 0, 0, ''
    for held_rid, held_units in string.gmatch(holder, '([^;=]+)=(%d+)') do
      orders_n, units_n, last = orders_n + 1, units_n + tonumber(held_units), held_rid
    end
    if orders_n + 1 > orders_max or units_n + sum > units_max then return {'USER_LIMIT', last} end
  elseif orders_max < 1 or sum > units_max then
    return {'USER_LIMIT', ''}
  end
  local first, count = firsts[n], counts[n]
  local last = first + 2 * (count - 1)
  for i = first, last, 2 do
    local have = stock[sku_at[ARGV[i]]]
    if not have then return {'UNKNOWN_SKU', ARGV[i]} end
    if have < (count == 1 and sum or tonumber(ARGV[i + 1])) then
      return {'SOLD_OUT', ARGV[i], have < 0 and 0 or have}
    end
  end
  if holds >= pend_max then return {'FULL', holds} end

  for i = first, last, 2 do
    local k, q = sku_at[ARGV[i]], count == 1 and sum or tonumber(ARGV[i + 1])
    stock[k], pending[k], touched[k] = stock[k] - q, pending[k] + q, true
  end
  local left = stock[sku_at[ARGV[first]]]
  record = 'P' .. body .. left .. tail
  local entry = rid .. '=' .. (count == 1 and ARGV[first + 1] or sum)
  holder = holder and (holder .. ';' .. entry) or entry
  new_record[rid], new_holder[user] = record, holder
  set_rsv[w + 1], set_rsv[w + 2] = rid, record
  set_user[w + 1], set_user[w + 2] = user, holder
  add_pend[w + 1], add_pend[w + 2] = now_text, rid
  w, holds = w + 2, holds + 1
  return {'OK', left}
end

local reply = {seq}
for i = 1, n do reply[i + 1] = decide(i) end

if w > 0 then
  local set_stock, set_pending, at_sku = {}, {}, 0
  for k in pairs(touched) do
    set_stock[at_sku + 1], set_stock[at_sku + 2] = skus[k], stock[k]
    set_pending[at_sku + 1], set_pending[at_sku + 2] = skus[k], pending[k]
    at_sku = at_sku + 2
  end
  seq = seq + w / 2
  call('HSET', RSV, unpack(set_rsv))
  call('ZADD', PEND, unpack(add_pend))
  call('HSET', USER, unpack(set_user))
  call('HSET', STOCK, unpack(set_stock))
  call('HSET', PENDING, unpack(set_pending))
  call('HSET', META, 'seq', seq)
  if Q then
    for i = 1, w, 2 do call('XADD', Q, 'MAXLEN', '~', ENTRIES_MAX, '*', 'rid', set_rsv[i]) end
  end
  reply[1] = seq
end
return reply
