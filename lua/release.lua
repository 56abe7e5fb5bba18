#!lua
-- Gives back what reservations took, once each, and frees their users. A reservation that never
-- arrived leaves a tombstone: a reserve that is still in a socket is refused when it lands.
--
-- KEYS 1 meta  2 stock  3 rsv  4 pend  5 user  6 pending  7 committed
-- ARGV 1 reason  2… rid, rid, …
--
-- Returns {seq, code, code, …}, one code per rid and in its order:
--   RELEASED | ALREADY | TOMBSTONED | CORRUPT (fewer counted than held) | GONE (no such activity:
--   no key is created)

local META, STOCK, RSV, PEND, USER, PENDING, COMMITTED =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local REASON = ARGV[1]
local RIDS_MAX = 256
local call = redis.call

local rids = {unpack(ARGV, 2)}
if #rids == 0 or #rids > RIDS_MAX then return redis.error_reply('BAD_ARG from 1 to 256 rids are allowed') end
if string.find(REASON, '|', 1, true) then return redis.error_reply('BAD_ARG a reason has no |') end
for n = 1, #rids do
  if rids[n] == '' or string.find(rids[n], '[|;=]') then return redis.error_reply('BAD_ARG a rid has no | ; =') end
end
local reply = {0}
if call('EXISTS', META) == 0 then
  for n = 1, #rids do reply[n + 1] = 'GONE' end
  return reply
end
local seq = tonumber(call('HGET', META, 'seq') or '0')
if not seq then return {0, 'CORRUPT'} end

-- Read everything that is written below, so that a wrong type fails before the first write.
local records = call('HMGET', RSV, unpack(rids))
call('HLEN', STOCK)
call('ZCARD', PEND)
call('HLEN', USER)
call('HLEN', PENDING)
call('HLEN', COMMITTED)

local count = {[STOCK] = {}, [PENDING] = {}, [COMMITTED] = {}}
local function counted(key, sku)
  local n = count[key][sku] or tonumber(call('HGET', key, sku) or '')
  count[key][sku] = n
  return n
end

local seen, holders, set_rsv, done, changed = {}, {}, {}, {}, 0
local function release(n)
  local rid = rids[n]
  local record = seen[rid] or records[n]
  if not record then
    seen[rid] = 'X||||' .. REASON
    set_rsv[#set_rsv + 1], set_rsv[#set_rsv + 2] = rid, seen[rid]
    changed = changed + 1
    return 'TOMBSTONED'
  end
  local state, user, lines = string.match(record, '^(%u)([^|]*)|[^|]*|([^|]*)|')
  if state == 'R' or state == 'X' then return 'ALREADY' end
  if state ~= 'P' and state ~= 'C' then return 'CORRUPT' end
  local from = state == 'P' and PENDING or COMMITTED
  for sku, q in string.gmatch(lines, '([^;=]+)=(%d+)') do
    local have = counted(from, sku)
    if not counted(STOCK, sku) or not have or have < tonumber(q) then return 'CORRUPT' end
  end
  for sku, q in string.gmatch(lines, '([^;=]+)=(%d+)') do
    count[from][sku] = count[from][sku] - q
    count[STOCK][sku] = count[STOCK][sku] + q
  end
  -- The user is freed of this rid and of no other.
  local kept = {}
  for entry in string.gmatch(holders[user] or call('HGET', USER, user) or '', '[^;]+') do
    if string.sub(entry, 1, #rid + 1) ~= rid .. '=' then kept[#kept + 1] = entry end
  end
  holders[user] = table.concat(kept, ';')
  seen[rid] = 'R' .. string.sub(record, 2) .. REASON
  set_rsv[#set_rsv + 1], set_rsv[#set_rsv + 2] = rid, seen[rid]
  done[#done + 1] = rid
  changed = changed + 1
  return 'RELEASED'
end

for n = 1, #rids do reply[n + 1] = release(n) end

if changed > 0 then
  seq = seq + changed
  call('HSET', RSV, unpack(set_rsv))
  if #done > 0 then call('ZREM', PEND, unpack(done)) end
  for user, holder in pairs(holders) do
    if holder == '' then call('HDEL', USER, user) else call('HSET', USER, user, holder) end
  end
  for key, skus in pairs(count) do
    for sku, n in pairs(skus) do call('HSET', key, sku, n) end
  end
  call('HSET', META, 'seq', seq)
end
reply[1] = seq
return reply
