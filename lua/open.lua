#!lua
-- Lets buyers in, by compare-and-set: READY -> OPEN in the epoch of the stamp.
--
-- Stamped like reserve.lua and called by EVALSHA only: a Redis that restarted since the gate was
-- rebuilt does not know it, so a rebuild that lost its ground cannot open.
-- stamp @ACTIVITY@ @EPOCH@ @RUN_ID@
--
-- KEYS 1 meta
-- ARGV none
--
-- Returns {code, detail}: OPENED | ALREADY | GATE state | STALE_EPOCH epoch | NOT_WARMED

local META = KEYS[1]
local EPOCH = '@EPOCH@'
local call = redis.call

local meta = call('HMGET', META, 'state', 'epoch', 'seq')
if not meta[1] then return {'NOT_WARMED', ''} end
if meta[2] ~= EPOCH then return {'STALE_EPOCH', meta[2]} end
if meta[1] == 'OPEN' then return {'ALREADY', ''} end
if meta[1] ~= 'READY' then return {'GATE', meta[1]} end
call('HSET', META, 'state', 'OPEN', 'seq', (tonumber(meta[3] or '0') or 0) + 1)
return {'OPENED', ''}
