#!lua
-- The deduct that textbooks show, without a record of who took what: what a script costs at least.
--
-- KEYS 1 stock
-- ARGV 1 quantity
--
-- Returns what is left, -1 (no such stock) or -2 (too little left).

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local left = tonumber(redis.call('GET', KEYS[1]))
local quantity = tonumber(ARGV[1])
if left < quantity then return -2 end
return redis.call('DECRBY', KEYS[1], quantity)
