#!lua
-- Takes stock for a batch of orders: dedupe, purchase limit, deduct and hold record in one step.
--
-- Stamped: activity, epoch and run_id stand in this text, so its SHA names one opening of one gate
-- on one Redis. It is loaded by whoever opened the gate and called by EVALSHA only; NOSCRIPT means
-- "this is not the Redis that was opened".
-- stamp @ACTIVITY@ @EPOCH@ @RUN_ID@
-- The terms of the sale stand in it as well: they never change, and to read a number costs.
--
-- KEYS 1 meta  2 stock  3 rsv  4 pend  5 user  6 pending  7 q (only for holds that are booked
--      later: each is handed to the booking workers by an entry of this stream)
-- ARGV for each order: rid, user, fingerprint, number of lines, then sku and quantity of each line
--
-- Returns {seq, answer, answer, …}, one answer per order and in its order. Every order of a batch
-- is decided on its own, after those before it.
--   left                   a number: held; left of its first SKU
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

-- Most of the time goes into calls, then into tables, closures that capture, and numbers that become
-- texts or the reverse: so each is made once, and a single order makes none that it can do without.
local KEYS, ARGV, call = KEYS, ARGV, redis.call
local META, STOCK, RSV, PEND, USER, PENDING, Q = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local EPOCH, OPENS_AT, CLOSES_AT = '@EPOCH@', @OPENS_AT@, @CLOSES_AT@
local ORDERS_PER_USER_MAX, UNITS_PER_USER_MAX = @ORDERS_PER_USER_MAX@, @UNITS_PER_USER_MAX@
local ORDERS_MAX, LINES_MAX, DIGITS_MAX, TEXT_MAX = 256, 20, 9, 64
-- The stream is a wake-up and pend the truth, so it may forget what nobody reads.
local ENTRIES_MAX = 20000
local find, format = string.find, string.format

-- What a buyer is told whose rid has the record `record`; that of the same purchase goes on with
-- `body` after its state.
local function seen_before(record, body)
  local state = string.sub(record, 1, 1)
  if state == 'X' then return {'ABANDONED'} end
  if string.sub(record, 2, #body + 1) ~= body then return {'FP_MISMATCH'} end
  return {'REPLAY', state, tonumber(string.match(record, '^(%d+)|', #body + 2)) or -1}
end

-- The refusal of an order of `units` more for a user with the live orders of `holder`, if any.
local function too_much(holder, units, orders_max, units_max)
  local orders_n, held = 1, ''
  for held_rid, held_units in string.gmatch(holder, '([^;=]+)=(%d+)') do
    orders_n, units, held = orders_n + 1, units + tonumber(held_units), held_rid
  end
  if orders_n > orders_max or units > units_max then return {'USER_LIMIT', held} end
end

local meta = call('HMGET', META, 'seq', 'state', 'epoch', 'pend_max')
local seq, pend_max = tonumber(meta[1]), tonumber(meta[4])
if not meta[2] then return {0, {'NOT_WARMED'}} end
if not (seq and pend_max) or find(meta[1], '%D') then return {seq or 0, {'CORRUPT', 'meta'}} end

-- What is read here and below is all that is written, so that a wrong type fails before the first
-- write.
local holds = call('ZCARD', PEND)
if Q then call('XLEN', Q) end
local time = call('TIME')
-- Milliseconds, also as a text.
local now_text = time[1] .. string.sub('00000' .. time[2], -6, -4)
local now, gate = tonumber(now_text), nil
if meta[3] ~= EPOCH then gate = {'STALE_EPOCH', meta[3]}
elseif meta[2] ~= 'OPEN' then gate = {'GATE', meta[2]}
elseif now < OPENS_AT then gate = {'NOT_OPEN', OPENS_AT}
elseif now >= CLOSES_AT then gate = {'ENDED', CLOSES_AT} end
local tail = Q and ('|' .. now_text .. '|') or '|'

-- One order of one line, as most calls are: the same as below, without its tables.
if #ARGV == 6 and ARGV[4] == '1' then
  local rid, user, fp, sku, text = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
  -- `|`, `;` and `=` delimit the records.
  if #rid == 0 or #rid > TEXT_MAX or #user == 0 or #user > TEXT_MAX or #fp == 0 or #fp > TEXT_MAX
    or text ~= '1' and (#text > DIGITS_MAX or not find(text, '^[1-9]%d*$')) or find(rid, '=', 1, true)
    or find(rid, ';', 1, true) or find(user, '|', 1, true) or find(fp, '|', 1, true) then
    return {seq, {'BAD_ARG'}}
  end
  local have = call('HGET', STOCK, sku)
  if have then
    have = tonumber(have)
    if not have then return {seq, {'CORRUPT', sku}} end
  end
  local record, holder = call('HGET', RSV, rid), call('HGET', USER, user)
  local body, units = user .. '|' .. fp .. '|' .. sku .. '=' .. text .. '|', tonumber(text)
  if record then return {seq, seen_before(record, body)} end
  if gate then return {seq, gate} end
  local entry = rid .. '=' .. text
  if holder or units > UNITS_PER_USER_MAX then
    local refusal = too_much(holder or '', units, ORDERS_PER_USER_MAX, UNITS_PER_USER_MAX)
    if refusal then return {seq, refusal} end
    entry = holder .. ';' .. entry
  end
  if not have then return {seq, {'UNKNOWN_SKU', sku}} end
  if have < units then return {seq, {'SOLD_OUT', sku, have < 0 and 0 or have}} end
  if holds >= pend_max then return {seq, {'FULL', holds}} end

  local left = have - units
  local left_text = format('%d', left)
  -- First what has not been read: it fails where it is not counted in numbers.
  call('HINCRBY', PENDING, sku, text)
  call('HSET', STOCK, sku, left_text)
  call('HSET', RSV, rid, 'P' .. body .. left_text .. tail)
  call('ZADD', PEND, now_text, rid)
  call('HSET', USER, user, entry)
  if Q then call('XADD', Q, 'MAXLEN', '~', ENTRIES_MAX, '*', 'rid', rid) end
  return {call('HINCRBY', META, 'seq', '1'), left}
end

-- A batch that cannot be taken apart is refused as a whole, and so is one whose SKUs are not counted
-- in numbers. Lists that will be long are copied from one that is: to let them grow costs more than
-- to fill them.
local argc = #ARGV
local rids, users, lines_n = {unpack(ARGV, 1, argc / 6)}, {unpack(ARGV, 1, argc / 6)}, {}
-- By SKU what is left and what is held, by text the quantity; false where there is none.
local stock, pending, number = {}, {}, {}
local at, n = 1, 0
while at <= argc do
  local count = tonumber(ARGV[at + 3])
  if not count or count < 1 or count > LINES_MAX or count % 1 ~= 0 or at + 3 + 2 * count > argc or n == ORDERS_MAX then
    return {seq, {'BAD_ARG'}}
  end
  n = n + 1
  rids[n], users[n], lines_n[n] = ARGV[at], ARGV[at + 1], count
  for i = at + 4, at + 2 + 2 * count, 2 do
    local sku, text = ARGV[i], ARGV[i + 1]
    if number[text] == nil then
      number[text] = #text <= DIGITS_MAX and find(text, '^[1-9]%d*$') and tonumber(text) or false
    end
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

-- One call for all: a call costs more than what it carries.
local records, holders = call('HMGET', RSV, unpack(rids, 1, n)), call('HMGET', USER, unpack(users, 1, n))
-- What earlier orders of this batch did to the same rid or user.
local record_of, holder_of = {}, {}
local set_rsv, add_pend, set_user = {unpack(ARGV, 1, 2 * n)}, {unpack(ARGV, 1, 2 * n)}, {unpack(ARGV, 1, 2 * n)}
local reply, w = {unpack(ARGV, 1, n + 1)}, 0
at = 1
for k = 1, n do
  local rid, user, fp, first, last = rids[k], users[k], ARGV[at + 2], at + 4, at + 2 + 2 * lines_n[k]
  local sku, text, answer = ARGV[first], ARGV[first + 1], nil
  local lines, units = sku .. '=' .. text, number[text]
  at = last + 2
  if not units or #rid == 0 or #rid > TEXT_MAX or #user == 0 or #user > TEXT_MAX or #fp == 0 or #fp > TEXT_MAX
    or find(rid, '=', 1, true) or find(rid, ';', 1, true) or find(user, '|', 1, true) or find(fp, '|', 1, true) then
    answer = {'BAD_ARG'}
  elseif last > first then
    local seen = {[sku] = true}
    for i = first + 2, last, 2 do
      sku, text = ARGV[i], ARGV[i + 1]
      if seen[sku] or not number[text] then answer = {'BAD_ARG'} break end
      seen[sku] = true
      lines, units = lines .. ';' .. sku .. '=' .. text, units + number[text]
    end
    text = format('%d', units)
  end
  local record, holder = record_of[rid] or records[k], holder_of[user] or holders[k]
  if answer then -- It is bad.
  elseif record then answer = seen_before(record, user .. '|' .. fp .. '|' .. lines .. '|')
  elseif gate then answer = gate
  elseif holder or units > UNITS_PER_USER_MAX then
    answer = too_much(holder or '', units, ORDERS_PER_USER_MAX, UNITS_PER_USER_MAX)
  end
  if not answer then
    for i = first, last, 2 do
      local have = stock[ARGV[i]]
      if not have then answer = {'UNKNOWN_SKU', ARGV[i]} break end
      if have < number[ARGV[i + 1]] then answer = {'SOLD_OUT', ARGV[i], have < 0 and 0 or have} break end
    end
    if not answer and holds >= pend_max then answer = {'FULL', holds} end
  end
  if not answer then
    for i = first, last, 2 do
      local quantity = number[ARGV[i + 1]]
      sku = ARGV[i]
      stock[sku], pending[sku] = stock[sku] - quantity, pending[sku] + quantity
    end
    answer = stock[ARGV[first]]
    record = 'P' .. user .. '|' .. fp .. '|' .. lines .. '|' .. format('%d', answer) .. tail
    local entry = rid .. '=' .. text
    if holder then entry = holder .. ';' .. entry end
    record_of[rid], holder_of[user] = record, entry
    set_rsv[w + 1], set_rsv[w + 2] = rid, record
    add_pend[w + 1], add_pend[w + 2] = now_text, rid
    set_user[w + 1], set_user[w + 2] = user, entry
    w, holds = w + 2, holds + 1
  end
  reply[k + 1] = answer
end

if w > 0 then
  for sku, left in pairs(stock) do
    if left then
      call('HSET', STOCK, sku, left)
      call('HSET', PENDING, sku, pending[sku])
    end
  end
  call('HSET', RSV, unpack(set_rsv, 1, w))
  call('ZADD', PEND, unpack(add_pend, 1, w))
  call('HSET', USER, unpack(set_user, 1, w))
  if Q then
    for i = 1, w, 2 do call('XADD', Q, 'MAXLEN', '~', ENTRIES_MAX, '*', 'rid', set_rsv[i]) end
  end
  seq = seq + w / 2
  call('HSET', META, 'seq', seq)
end
reply[1] = seq
return reply
