-- Purpose: One node's vote on passing a lock on: frees it if it is the owner's, and takes it for the
--          next in one step. A lock that is nobody's is taken for the next all the same.
-- KEYS[1]  lock: holds the owner while the lock is held
-- KEYS[2]  waiting: holds the process that found it held last
-- ARGV[1]  owner: who asks
-- ARGV[2]  heir: the owner of the next grant
-- ARGV[3]  ttl_ms: length of the next lease in milliseconds
-- ARGV[4]  process: who asks on behalf of both; '' when it does not matter whether another waits
-- Returns: the sum of 1 when the lock was the owner's, 2 when it is the heir's, 4 when another process
--          waits
local lock, waiting = KEYS[1], KEYS[2]
local owner, heir, ttl_ms, process = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local holder = redis.call('GET', lock)
if holder and holder ~= owner and holder ~= heir then
  return 0
end
redis.call('SET', lock, heir, 'PX', ttl_ms)
local vote = holder == owner and 3 or 2
if process ~= '' then
  local last = redis.call('GET', waiting)
  if last and last ~= process then
    vote = vote + 4
  end
end
return vote
