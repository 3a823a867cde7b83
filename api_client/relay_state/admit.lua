-- Admit an owner's turns if all limits leave room. All limits are checked before anything is written.
-- KEYS[1] rate, KEYS[2] stored (strings: when the bucket is full again, in ms)
-- KEYS[3] unfinished (sorted set: turn ids by the time they were noted, in ms)
-- ARGV[1] cost in the rate's bucket, in ms  ARGV[2] size of that bucket, in ms; 0: no limit
-- ARGV[3], ARGV[4] the same for stored bytes
-- ARGV[5] most unfinished turns, 0: no limit  ARGV[6] number of new turns  ARGV[7] how long ids are kept, in ms
-- ARGV[8...] the ids of the new turns, if known
-- answers {'admitted', 0} | {'rate', ms to wait} | {'bytes', ms to wait} | {'unfinished', their number}

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- When the bucket would be full again after this cost, and how long to wait until the cost fits.
local function poured(key, cost, holds)
  local full = math.max(tonumber(redis.call('GET', key) or '0') or 0, now) + cost
  return full, math.ceil(full - now - holds)
end

local holds_rate, holds_bytes, most = tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
local rate, rate_wait = poured(KEYS[1], tonumber(ARGV[1]), holds_rate)
if holds_rate > 0 and rate_wait > 0 then return { 'rate', rate_wait } end
local bytes, bytes_wait = poured(KEYS[2], tonumber(ARGV[3]), holds_bytes)
if holds_bytes > 0 and bytes_wait > 0 then return { 'bytes', bytes_wait } end
if most > 0 then
  local there = redis.call('ZCARD', KEYS[3])
  if there + tonumber(ARGV[6]) > most then return { 'unfinished', there } end
end

-- A valid expiry for the server: whole, positive and not too large.
local function life(ms) return string.format('%.0f', math.max(1, math.min(2 ^ 53, math.ceil(ms)))) end
local function keep(key, full)
  if full > now then redis.call('SET', key, string.format('%.0f', full), 'PX', life(full - now)) end
end
if holds_rate > 0 then keep(KEYS[1], rate) end
if holds_bytes > 0 then keep(KEYS[2], bytes) end
if most > 0 and #ARGV > 7 then
  for place = 8, #ARGV do redis.call('ZADD', KEYS[3], now, ARGV[place]) end
  redis.call('PEXPIRE', KEYS[3], life(tonumber(ARGV[7])))
end
return { 'admitted', 0 }
