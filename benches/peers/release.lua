-- Frees a key if it is the owner's, as the Redis documentation releases a lock.
--
-- KEYS[1]  the key
-- ARGV[1]  the owner
--
-- Returns 1 when it was freed, 0 when it was another's or nobody's.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
