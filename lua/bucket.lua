#!lua
-- Takes one token from a user's bucket and one from the activity's, or none from either: what the
-- activity refuses must not cost its user anything.
-- A bucket is full until it is asked for, and fills by this server's clock. Where that clock has
-- stepped back, nothing is gained for the step, and the bucket fills on from the clock as it is.
-- A refusal writes nothing, so a bucket that is asked for all the time fills all the same.
--
-- KEYS 1 the user's bucket  2 the activity's bucket
-- ARGV 1 capacity of the user's bucket, 0 for no limit  2 its tokens per second
--      3 capacity of the activity's bucket, 0 for no limit  4 its tokens per second
--
-- Returns {1, 0, 0} when let in; {0, n, ms} when the bucket KEYS[n] is empty and has a token in ms
-- milliseconds. The user's bucket is asked first.

-- A bucket that nobody asks for this long is full again: its key must not stay for ever.
local KEEP_MS_MAX = 30 * 24 * 3600 * 1000

local TIME = redis.call('TIME')
local NOW = tonumber(TIME[1]) * 1e6 + tonumber(TIME[2])

local function read(key, capacity, per_s)
  local bucket = {key = key, capacity = tonumber(capacity), per_s = tonumber(per_s)}
  if not (bucket.capacity and bucket.per_s) or bucket.capacity < 0
    or (bucket.capacity > 0 and not (bucket.per_s > 0)) then
    return nil
  end
  if bucket.capacity == 0 then
    return bucket
  end
  local kept = redis.call('HMGET', key, 'tokens', 'at')
  local tokens, at = tonumber(kept[1]), tonumber(kept[2])
  -- Written so that what is no number (NaN) counts as nothing known, too.
  if not (tokens and at and tokens >= 0) then
    tokens, at = bucket.capacity, NOW
  end
  bucket.stepped_back = at > NOW
  local gained = math.max(0, NOW - at) * bucket.per_s / 1e6
  bucket.tokens = math.min(bucket.capacity, tokens + gained)
  return bucket
end

local function write(bucket)
  if bucket.capacity == 0 then
    return
  end
  local fill_ms = math.ceil((bucket.capacity - bucket.tokens) / bucket.per_s * 1000)
  redis.call('HSET', bucket.key, 'tokens', string.format('%.17g', bucket.tokens),
    'at', string.format('%.0f', NOW))
  -- Once it would be full, it need not be there.
  redis.call('PEXPIRE', bucket.key, string.format('%.0f', math.min(fill_ms + 1, KEEP_MS_MAX)))
end

local user = read(KEYS[1], ARGV[1], ARGV[2])
local activity = read(KEYS[2], ARGV[3], ARGV[4])
if not user or not activity then
  return redis.error_reply('BADARG a bucket is two numbers: capacity and tokens per second')
end

local buckets = {user, activity}
for n, bucket in ipairs(buckets) do
  if bucket.capacity > 0 and bucket.tokens < 1 then
    for _, each in ipairs(buckets) do
      if each.stepped_back then
        write(each)
      end
    end
    local wait_ms = math.ceil((1 - bucket.tokens) / bucket.per_s * 1000)
    return {0, n, string.format('%.0f', wait_ms)}
  end
end
for _, bucket in ipairs(buckets) do
  if bucket.capacity > 0 then
    bucket.tokens = bucket.tokens - 1
  end
  write(bucket)
end
return {1, 0, '0'}
