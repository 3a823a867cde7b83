#!lua
-- Note that a reaper looks, and say since when reapers have looked without a gap. One reaper looks for all until it
-- has not looked for a while, or the clock was set back; the others write nothing. Idempotent enough to be repeated.
-- KEYS[1] reapers (hash: by, seen, calm_since; ms of this server's clock)
-- ARGV[1] longest gap in ms  ARGV[2] this reaper
-- ARGV[3] how long the one that looked last goes on to look for all, in ms
-- answers {now, calm since, 1: it looks for all, else 0, 1: the clock was set back, else 0}

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function int(value) return string.format('%.0f', value) end

local kept = redis.call('HMGET', KEYS[1], 'seen', 'calm_since', 'by')
local seen, since, by = tonumber(kept[1] or ''), tonumber(kept[2] or ''), kept[3]
local set_back = seen and now < seen
if since and by and by ~= ARGV[2] and not set_back and now - seen < tonumber(ARGV[3]) then
  return { int(now), int(since), 0, 0 }
end
-- Nobody looked for too long, so maybe no holder could beat either; or the clock was set.
if not seen or not since or set_back or now - seen > tonumber(ARGV[1]) then since = now end
redis.call('HSET', KEYS[1], 'seen', int(now), 'calm_since', int(since), 'by', ARGV[2])
-- After a longer gap it would say nothing anyway.
redis.call('PEXPIRE', KEYS[1], int(math.max(1, math.min(2 ^ 53, tonumber(ARGV[1]) * 10))))
return { int(now), int(since), 1, set_back and 1 or 0 }
