-- Purpose: Frees a lock if it is the owner's and takes it for the next in one step, with a fencing
--          token of its own. A lock that is nobody's any more is taken for the next all the same.
-- KEYS[1]  lock: holds the owner while the lock is held
-- KEYS[2]  fence: the last fencing token; outlives the lock
-- ARGV[1]  owner: who asks
-- ARGV[2]  heir: the owner of the next grant
-- ARGV[3]  ttl_ms: length of the next lease in milliseconds
-- ARGV[4]  channel: where those listen who wait for a release; '' when it does not matter who does
-- Returns: {freed, token, listening}: 1 when the lock was the owner's, else 0; the next token, or 0
--          when the lock is another's; how many listen
local lock, fence = KEYS[1], KEYS[2]
local owner, heir, ttl_ms, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local holder = redis.call('GET', lock)
if holder and holder ~= owner then
  return {0, 0, 0}
end
local listening = 0
if channel ~= '' then
  listening = redis.call('PUBSUB', 'NUMSUB', channel)[2]
end
-- The counter first: if it cannot count, nothing has changed.
local token = redis.call('INCR', fence)
redis.call('SET', lock, heir, 'PX', ttl_ms)
return {holder and 1 or 0, token, listening}
