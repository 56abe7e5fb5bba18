-- Purpose: Raises the fencing counter, after a failover or a flush lost its history.
-- KEYS[1]  fence: the last fencing token
-- ARGV[1]  floor: a token that the store has accepted already
-- Returns: the counter afterwards, at least floor
local fence = KEYS[1]
local floor = tonumber(ARGV[1])

local last = tonumber(redis.call('GET', fence) or '0')
if last < floor then
  redis.call('SET', fence, ARGV[1])
  return floor
end
return last
