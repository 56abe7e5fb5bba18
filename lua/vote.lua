-- Purpose: One node's vote on who has a lock: takes it if it is free, and marks that somebody waits
--          if it is not.
-- KEYS[1]  lock: holds the owner while the lock is held
-- KEYS[2]  waiting: holds the process that found it held last
-- ARGV[1]  owner: random, one per try
-- ARGV[2]  ttl_ms: length of the lease in milliseconds
-- ARGV[3]  process: who asks on behalf of the owner
-- ARGV[4]  mark_ms: how long it is known that it waits
-- Returns: 1 when the lock is the owner's; 0 when it is another's
local lock, waiting = KEYS[1], KEYS[2]
local owner, ttl_ms, process, mark_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local holder = redis.call('GET', lock)
if holder and holder ~= owner then
  redis.call('SET', waiting, process, 'PX', mark_ms)
  return 0
end
redis.call('SET', lock, owner, 'PX', ttl_ms)
return 1
