-- Let an owner submit turns, if its limits leave room. All limits are looked at before anything is written.
-- KEYS[1] rate, KEYS[2] stored (strings: when the bucket is full again, in ms)
-- KEYS[3] unfinished (sorted set: turn ids by when they were noted, in ms)
-- ARGV[1] what this costs of the rate, in ms  ARGV[2] what its bucket holds, in ms; 0: no limit
-- ARGV[3], ARGV[4] the same for the bytes that are stored
-- ARGV[5] unfinished turns at most, 0: no limit  ARGV[6] how many come  ARGV[7] how long they are noted, in ms
-- ARGV[8...] their ids, where they are known already
-- answers {'admitted', 0} | {'rate', ms to wait} | {'bytes', ms to wait} | {'unfinished', how many there are}

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- When the bucket is full again with this in it, and how long to wait until that fits.
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

-- A life as the server takes it: whole, above 0, and not beyond all times.
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
