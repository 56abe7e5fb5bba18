#!lua
-- Counts a gate that does not sell anew from its reservations, in one step. For counters that were
-- found wrong; it takes time proportional to the number of reservations.
--
-- KEYS 1 meta  2 total  3 stock  4 pending  5 committed  6 rsv
-- ARGV 1 epoch
--
-- Returns {code, detail}: COUNTED number of counters changed | GATE OPEN | STALE_EPOCH epoch |
--   NOT_WARMED | CORRUPT what (a record or a total that cannot be read; nothing is written)

local META, TOTAL, STOCK, PENDING, COMMITTED, RSV = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local EPOCH = ARGV[1]
local call = redis.call

local meta = call('HMGET', META, 'state', 'epoch', 'seq')
if not meta[1] then return {'NOT_WARMED', ''} end
if meta[2] ~= EPOCH then return {'STALE_EPOCH', meta[2]} end
if meta[1] == 'OPEN' then return {'GATE', 'OPEN'} end

-- Read every key, so that a wrong type fails before the first write.
local totals, total, pending, committed = call('HGETALL', TOTAL), {}, {}, {}
local was = {[STOCK] = {}, [PENDING] = {}, [COMMITTED] = {}}
for key, counters in pairs(was) do
  local pairs_of = call('HGETALL', key)
  for i = 1, #pairs_of, 2 do counters[pairs_of[i]] = tonumber(pairs_of[i + 1]) end
end
for i = 1, #totals, 2 do
  local sku = totals[i]
  total[sku], pending[sku], committed[sku] = tonumber(totals[i + 1]), 0, 0
  if not total[sku] then return {'CORRUPT', 'the total of ' .. sku} end
end

local records = call('HGETALL', RSV)
for i = 1, #records, 2 do
  local state, lines = string.match(records[i + 1], '^(%u)[^|]*|[^|]*|([^|]*)|')
  local of = (state == 'P' and pending) or (state == 'C' and committed)
  if not of and state ~= 'R' and state ~= 'X' then return {'CORRUPT', 'reservation ' .. records[i]} end
  if of then
    for sku, q in string.gmatch(lines, '([^;=]+)=(%d+)') do
      if not of[sku] then return {'CORRUPT', 'reservation ' .. records[i]} end
      of[sku] = of[sku] + tonumber(q)
    end
  end
end

local changed = 0
local function set(key, sku, n)
  if was[key][sku] == n then return end
  call('HSET', key, sku, string.format('%d', n))
  changed = changed + 1
end
for sku, n in pairs(total) do
  set(PENDING, sku, pending[sku])
  set(COMMITTED, sku, committed[sku])
  set(STOCK, sku, n - pending[sku] - committed[sku])
end
if changed > 0 then call('HSET', META, 'seq', string.format('%d', (tonumber(meta[3] or '0') or 0) + changed)) end
return {'COUNTED', tostring(changed)}
