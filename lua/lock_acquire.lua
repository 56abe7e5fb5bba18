-- Purpose: Takes a lock that is free, and issues the fencing token of the grant.
--          Repeated by the same owner while the lock is its own, it answers the same token and
--          leaves the time to live as it is: a lost reply may be asked for again.
-- KEYS[1]  lock: holds the owner while the lock is held
-- KEYS[2]  fence: the last fencing token; outlives the lock
-- ARGV[1]  owner: random, one per acquisition
-- ARGV[2]  ttl_ms: length of the lease in milliseconds
-- Returns: token, a number, when granted; {left_ms} when held by another, for at most that long
local lock, fence = KEYS[1], KEYS[2]
local owner, ttl_ms = ARGV[1], ARGV[2]

local holder = redis.call('SET', lock, owner, 'NX', 'GET', 'PX', ttl_ms)
if holder == owner then
  return tonumber(redis.call('GET', fence))
end
if holder then
  return {redis.call('PTTL', lock)}
end
local token = redis.pcall('INCR', fence)
if type(token) ~= 'number' then
  -- It cannot count, so the lock is not taken.
  redis.call('DEL', lock)
end
return token
