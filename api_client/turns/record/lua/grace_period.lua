#!lua
-- Register a reaper's look, and return since when reapers have looked without a gap. One reaper acts for all until it
-- stops looking or the clock is set back; the other reapers write nothing. Safe to repeat.
-- KEYS[1] reapers (hash: by, seen, gapless_since; ms of this server's clock)
-- ARGV[1] longest gap in ms  ARGV[2] the name of this reaper
-- ARGV[3] how long a reaper keeps acting for all after its last look, in ms
-- answers {now, gapless since, 1 if this reaper acts for all, 1 if the clock was set back}

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function int(value) return string.format('%.0f', value) end

local kept = redis.call('HMGET', KEYS[1], 'seen', 'gapless_since', 'by')
local seen, since, by = tonumber(kept[1] or ''), tonumber(kept[2] or ''), kept[3]
local set_back = seen and now < seen
if since and by and by ~= ARGV[2] and not set_back and now - seen < tonumber(ARGV[3]) then
  return { int(now), int(since), 0, 0 }
end
-- After such a gap holders may have been unable to renew, or the clock was set.
if not seen or not since or set_back or now - seen > tonumber(ARGV[1]) then since = now end
redis.call('HSET', KEYS[1], 'seen', int(now), 'gapless_since', int(since), 'by', ARGV[2])
-- Older looks carry no information.
redis.call('PEXPIRE', KEYS[1], int(math.max(1, math.min(2 ^ 53, tonumber(ARGV[1]) * 10))))
return { int(now), int(since), 1, set_back and 1 or 0 }
