-- Purpose: Frees a lock if it is the owner's, and tells those who wait.
-- KEYS[1]  lock: holds the owner while the lock is held
-- ARGV[1]  owner: who asks
-- ARGV[2]  channel: where a release is announced
-- Returns: 1 when freed; 0 when the lock is another's or nobody's
local lock = KEYS[1]
local owner, channel = ARGV[1], ARGV[2]

if redis.call('GET', lock) == owner then
  redis.call('DEL', lock)
  redis.call('PUBLISH', channel, owner)
  return 1
end
return 0
