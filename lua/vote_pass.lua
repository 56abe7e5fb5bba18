-- Purpose: One node's vote on passing a lock on: frees it if it is the owner's, and takes it for the
--          next in one step. A lock that is nobody's is taken for the next all the same.
-- KEYS[1]  lock: holds the owner while the lock is held
-- KEYS[2]  waiting: holds the process that found it held last
-- ARGV[1]  owner: who asks
-- ARGV[2]  heir: the owner of the next grant
-- ARGV[3]  ttl_ms: length of the next lease in milliseconds
-- ARGV[4]  process: who asks on behalf of both
-- Returns: {freed, taken, others}: 1 or 0 each: it was the owner's, it is the heir's, another process
--          waits
local lock, waiting = KEYS[1], KEYS[2]
local owner, heir, ttl_ms, process = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local holder = redis.call('GET', lock)
if holder and holder ~= owner and holder ~= heir then
  return {0, 0, 0}
end
redis.call('SET', lock, heir, 'PX', ttl_ms)
local last = redis.call('GET', waiting)
return {holder == owner and 1 or 0, 1, last and last ~= process and 1 or 0}
