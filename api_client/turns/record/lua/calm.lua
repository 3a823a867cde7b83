#!lua
-- Note that a reaper looks, and say since when reapers have looked without a pause. Idempotent enough to be repeated.
-- KEYS[1] reapers (hash: seen, calm_since; ms of this server's clock)  ARGV[1] longest pause in ms
-- answers {now, calm since}

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function int(value) return string.format('%.0f', value) end

local kept = redis.call('HMGET', KEYS[1], 'seen', 'calm_since')
local seen, since = tonumber(kept[1] or ''), tonumber(kept[2] or '')
-- Nobody looked for too long, so maybe no holder could beat either; or the clock was set.
if not seen or not since or now < seen or now - seen > tonumber(ARGV[1]) then since = now end
redis.call('HSET', KEYS[1], 'seen', int(now), 'calm_since', int(since))
-- After a longer pause it would say nothing anyway.
redis.call('PEXPIRE', KEYS[1], int(tonumber(ARGV[1]) * 10))
return { int(now), int(since) }
