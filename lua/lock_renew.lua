-- Purpose: Gives the owner of a lock a whole lease again. Never creates a lock that is gone.
-- KEYS[1]  lock: holds the owner while the lock is held
-- ARGV[1]  owner: who asks
-- ARGV[2]  ttl_ms: length of the lease in milliseconds
-- Returns: 1 when renewed; 0 when the lock is another's or nobody's
local lock = KEYS[1]
local owner, ttl_ms = ARGV[1], ARGV[2]

if redis.call('GET', lock) == owner then
  return redis.call('PEXPIRE', lock, ttl_ms)
end
return 0
