-- Purpose: Takes a lock that is free, and issues the fencing token of the grant.
--          Repeated by the same owner while the lock is its own, it answers the same token and
--          leaves the time to live as it is: a lost reply may be asked for again.
-- KEYS[1]  lock: holds the owner while the lock is held
-- KEYS[2]  fence: the last fencing token; outlives the lock
-- ARGV[1]  owner: random, one per acquisition
-- ARGV[2]  ttl_ms: length of the lease in milliseconds
-- Returns: {1, token} when granted; {0, left_ms} when held by another, for at most that long
local lock, fence = KEYS[1], KEYS[2]
local owner, ttl_ms = ARGV[1], ARGV[2]

local holder = redis.call('GET', lock)
if holder == owner then
  return {1, tonumber(redis.call('GET', fence))}
end
if holder then
  return {0, redis.call('PTTL', lock)}
end
-- The counter first: if it cannot count, the lock is not taken.
local token = redis.call('INCR', fence)
redis.call('SET', lock, owner, 'NX', 'PX', ttl_ms)
return {1, token}
