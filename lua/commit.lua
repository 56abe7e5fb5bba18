#!lua
-- Settles holds whose order is in the database: pending -> committed.
--
-- KEYS 1 meta  2 rsv  3 pend  4 pending  5 committed
-- ARGV rid, rid, …
--
-- Returns {seq, code, code, …}, one code per rid and in its order:
--   COMMITTED | ALREADY | DEAD (released or given up) | MISSING | CORRUPT (fewer pending than held)

local META, RSV, PEND, PENDING, COMMITTED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local RIDS_MAX = 256
local call = redis.call

local seq = tonumber(call('HGET', META, 'seq') or '0')
if not seq then return {0, 'CORRUPT'} end
if #ARGV == 0 or #ARGV > RIDS_MAX then return redis.error_reply('BAD_ARG from 1 to 256 rids are allowed') end

-- Read everything that is written below, so that a wrong type fails before the first write.
local records = call('HMGET', RSV, unpack(ARGV))
call('ZCARD', PEND)
call('HLEN', PENDING)
call('HLEN', COMMITTED)

local pending, committed = {}, {}
local seen, set_rsv, done = {}, {}, {}
local function commit(n)
  local rid = ARGV[n]
  local record = seen[rid] or records[n]
  if not record then return 'MISSING' end
  local state = string.sub(record, 1, 1)
  if state == 'C' then return 'ALREADY' end
  if state ~= 'P' then return 'DEAD' end
  local lines = string.match(record, '^P[^|]*|[^|]*|([^|]*)|')
  if not lines then return 'CORRUPT' end
  for sku, q in string.gmatch(lines, '([^;=]+)=(%d+)') do
    pending[sku] = pending[sku] or tonumber(call('HGET', PENDING, sku) or '')
    committed[sku] = committed[sku] or tonumber(call('HGET', COMMITTED, sku) or '')
    if not pending[sku] or not committed[sku] or pending[sku] < tonumber(q) then return 'CORRUPT' end
  end
  for sku, q in string.gmatch(lines, '([^;=]+)=(%d+)') do
    pending[sku], committed[sku] = pending[sku] - q, committed[sku] + q
  end
  record = 'C' .. string.sub(record, 2)
  seen[rid] = record
  set_rsv[#set_rsv + 1], set_rsv[#set_rsv + 2] = rid, record
  done[#done + 1] = rid
  return 'COMMITTED'
end

local reply = {seq}
for n = 1, #ARGV do reply[n + 1] = commit(n) end

if #done > 0 then
  seq = seq + #done
  call('HSET', RSV, unpack(set_rsv))
  call('ZREM', PEND, unpack(done))
  for sku, n in pairs(pending) do call('HSET', PENDING, sku, n) end
  for sku, n in pairs(committed) do call('HSET', COMMITTED, sku, n) end
  call('HSET', META, 'seq', seq)
  reply[1] = seq
end
return reply
