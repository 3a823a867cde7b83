#!lua
-- Set or end pauses, and make all held-back turns due, so that released turns continue at once.
-- KEYS[1] pauses (hash)  KEYS[2] held (zset)  KEYS[3] due (zset)
-- ARGV name, JSON or '' to end the pause; and so on
-- answers the number of these pauses that existed before

local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
local before = 0
for i = 1, #ARGV, 2 do
  before = before + redis.call('HEXISTS', KEYS[1], ARGV[i])
  local name, pause = ARGV[i], ARGV[i + 1]
  if pause == '' then redis.call('HDEL', KEYS[1], name) else redis.call('HSET', KEYS[1], name, pause) end
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do redis.call('ZADD', KEYS[3], 'XX', now, id) end
return before
