#!lua flags=no-writes
-- Lists holds that have waited for their booking for a while, the oldest first, by Redis's clock.
--
-- KEYS 1 pend  2 rsv
-- ARGV 1 age in ms  2 how many of the oldest to skip  3 how many to list
--
-- Returns {rid, record, rid, record, …}; a record that is missing is ''.

local PEND, RSV = KEYS[1], KEYS[2]
local AGE, SKIP, LIMIT = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local LIMIT_MAX = 256
local call = redis.call

if not (AGE and SKIP and LIMIT) or SKIP < 0 or LIMIT < 1 or LIMIT > LIMIT_MAX then
  return redis.error_reply('BAD_ARG age, skip and limit are numbers, and the limit is from 1 to 256')
end
local time = call('TIME')
local until_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - AGE
local rids = call('ZRANGEBYSCORE', PEND, '-inf', string.format('%d', until_ms), 'LIMIT', SKIP, LIMIT)
if #rids == 0 then return {} end
local records, reply = call('HMGET', RSV, unpack(rids)), {}
for n = 1, #rids do
  reply[2 * n - 1], reply[2 * n] = rids[n], records[n] or ''
end
return reply
