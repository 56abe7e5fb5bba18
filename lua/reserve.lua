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

-- A batch that cannot be taken apart is refused as a whole, and so is one whose SKUs are not counted
-- in numbers. What is read here and below is all that is written, so that a wrong type fails before
-- the first write.
local stock, pending = {}, {}
local starts, rids, users, n = {}, {}, {}, 0
local at, argc = 1, #ARGV
while at <= argc do
  local count = tonumber(ARGV[at + 3])
  if not count or count < 1 or count > LINES_MAX or count % 1 ~= 0 or at + 3 + 2 * count > argc or n == ORDERS_MAX then
    return {seq, {'BAD_ARG'}}
  end
  n = n + 1
  starts[n], rids[n], users[n] = at, ARGV[at], ARGV[at + 1]
  for i = at + 4, at + 2 + 2 * count, 2 do
    local sku = ARGV[i]
    if stock[sku] == nil then
      local have = call('HGET', STOCK, sku)
      if have then
        have, pending[sku] = tonumber(have), tonumber(call('HGET', PENDING, sku) or '')
        if not (have and pending[sku]) then return {seq, {'CORRUPT', sku}} end
      end
      stock[sku] = have
    end
  end
  at = at + 4 + 2 * count
end
if n == 0 then return {seq, {'BAD_ARG'}} end
starts[n + 1] = at

local holds = call('ZCARD', PEND)
if Q then call('XLEN', Q) end
local time = call('TIME')
-- Milliseconds as a text: writing a number costs as much as a lookup.
local now_text = time[1] .. sub(time[2] + 1000000, 2, 4)
local now = tonumber(now_text)
local tail = Q and ('|' .. now_text .. '|') or '|'
local gate
if meta[2] ~= EPOCH then gate = {'STALE_EPOCH', meta[2]}
elseif meta[1] ~= 'OPEN' then gate = {'GATE', meta[1]}
elseif now < opens_at then gate = {'NOT_OPEN', opens_at}
elseif now >= closes_at then gate = {'ENDED', closes_at} end

-- Decides about the order whose arguments begin at `at` and whose last line is at `last`, given what
-- stands under its rid and its user. Answers what the buyer is told; for a hold, also the record and
-- the user's entry that are to be written.
local function decide(at, last, record, holder)
  local rid, user, fp, first = ARGV[at], ARGV[at + 1], ARGV[at + 2], at + 4
  local sku, text = ARGV[first], ARGV[first + 1]
  -- `|`, `;` and `=` delimit the records.
  if #rid == 0 or #rid > TEXT_MAX or #user == 0 or #user > TEXT_MAX or #fp == 0 or #fp > TEXT_MAX
    or #text > DIGITS_MAX or not find(text, '^[1-9]%d*$') or find(rid, '=', 1, true) or find(rid, ';', 1, true)
    or find(user, '|', 1, true) or find(fp, '|', 1, true) then
    return {'BAD_ARG'}
  end
  local lines, units = sku .. '=' .. text, tonumber(text)
  if last > first then
    local seen = {[sku] = true}
    for i = first + 2, last, 2 do
      sku, text = ARGV[i], ARGV[i + 1]
      if seen[sku] or #text > DIGITS_MAX or not find(text, '^[1-9]%d*$') then return {'BAD_ARG'} end
      seen[sku] = true
      lines, units = lines .. ';' .. sku .. '=' .. text, units + tonumber(text)
    end
  end
  local body = user .. '|' .. fp .. '|' .. lines .. '|'

  if record then
    local state = sub(record, 1, 1)
    if state == 'X' then return {'ABANDONED'} end
    if sub(record, 2, #body + 1) ~= body then return {'FP_MISMATCH'} end
    return {'REPLAY', state, tonumber(string.match(record, '^(%d+)|', #body + 2)) or -1}
  end
  if gate then return gate end
  local entry = rid .. '=' .. units
  if holder then
    local orders_n, units_n, held = 0, 0, ''
    for held_rid, held_units in string.gmatch(holder, '([^;=]+)=(%d+)') do
      orders_n, units_n, held = orders_n + 1, units_n + tonumber(held_units), held_rid
    end
    if orders_n + 1 > orders_max or units_n + units > units_max then return {'USER_LIMIT', held} end
    entry = holder .. ';' .. entry
  elseif orders_max < 1 or units > units_max then
    return {'USER_LIMIT', ''}
  end
  for i = first, last, 2 do
    local have = stock[ARGV[i]]
    if not have then return {'UNKNOWN_SKU', ARGV[i]} end
    if have < tonumber(ARGV[i + 1]) then return {'SOLD_OUT', ARGV[i], have < 0 and 0 or have} end
  end
  if holds >= pend_max then return {'FULL', holds} end

  for i = first, last, 2 do
    sku, text = ARGV[i], tonumber(ARGV[i + 1])
    stock[sku], pending[sku] = stock[sku] - text, pending[sku] + text
  end
  holds = holds + 1
  local left = stock[ARGV[first]]
  return {'OK', left}, 'P' .. body .. left .. tail, entry
end

-- Wakes the workers that book later.
local function hand_over(rid) call('XADD', Q, 'MAXLEN', '~', ENTRIES_MAX, '*', 'rid', rid) end

local reply, before = {seq}, holds
if n == 1 then
  local rid, user, record, entry = rids[1], users[1], nil, nil
  reply[2], record, entry = decide(1, at - 2, call('HGET', RSV, rid), call('HGET', USER, user))
  if record then
    call('HSET', RSV, rid, record)
    call('ZADD', PEND, now_text, rid)
    call('HSET', USER, user, entry)
    if Q then hand_over(rid) end
  end
else
  -- One call for all: a call costs more than what it carries.
  local records, holders = call('HMGET', RSV, unpack(rids)), call('HMGET', USER, unpack(users))
  -- `record_of` and `holder_of` are what earlier orders of this batch did to the same rid or user.
  local record_of, holder_of = {}, {}
  local set_rsv, add_pend, set_user, w = {}, {}, {}, 0
  for i = 1, n do
    local rid, user, record, entry = rids[i], users[i], nil, nil
    reply[i + 1], record, entry =
      decide(starts[i], starts[i + 1] - 2, record_of[rid] or records[i], holder_of[user] or holders[i])
    if record then
      record_of[rid], holder_of[user] = record, entry
      set_rsv[w + 1], set_rsv[w + 2] = rid, record
      add_pend[w + 1], add_pend[w + 2] = now_text, rid
      set_user[w + 1], set_user[w + 2] = user, entry
      w = w + 2
    end
  end
  if w > 0 then
    call('HSET', RSV, unpack(set_rsv))
    call('ZADD', PEND, unpack(add_pend))
    call('HSET', USER, unpack(set_user))
    if Q then
      for i = 1, w, 2 do hand_over(set_rsv[i]) end
    end
  end
end

if holds > before then
  for sku, left in pairs(stock) do
    if left then
      call('HSET', STOCK, sku, left)
      call('HSET', PENDING, sku, pending[sku])
    end
  end
  seq = seq + holds - before
  call('HSET', META, 'seq', seq)
  reply[1] = seq
end
return reply
