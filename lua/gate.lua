#!lua
-- Moves the gate to a state in which nothing is sold: FENCED, CLOSING, PAUSED or SEALED. It never
-- opens: only the stamped open.lua does.
--
-- KEYS 1 meta
-- ARGV 1 epoch to set, '' to keep the one there  2 new state  3… states it may come from
--
-- Returns {code, detail}: SET old state | GATE state (not one to come from) |
--   STALE_EPOCH epoch (a later one is there) | NOT_WARMED | BAD_ARG what

local META = KEYS[1]
local EPOCH, STATE = ARGV[1], ARGV[2]
local call = redis.call

if STATE ~= 'FENCED' and STATE ~= 'CLOSING' and STATE ~= 'PAUSED' and STATE ~= 'SEALED' then return {'BAD_ARG', 'state'} end
if EPOCH ~= '' and not string.find(EPOCH, '^%d+$') then return {'BAD_ARG', 'epoch'} end

local meta = call('HMGET', META, 'state', 'epoch', 'seq')
if not meta[1] then return {'NOT_WARMED', ''} end
if EPOCH ~= '' and tonumber(meta[2]) > tonumber(EPOCH) then return {'STALE_EPOCH', meta[2]} end
local may = false
for i = 3, #ARGV do may = may or ARGV[i] == meta[1] end
if not may then return {'GATE', meta[1]} end
call('HSET', META, 'state', STATE, 'epoch', EPOCH ~= '' and EPOCH or meta[2], 'seq', (tonumber(meta[3] or '0') or 0) + 1)
return {'SET', meta[1]}
