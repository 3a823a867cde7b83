#!lua
-- Put a notification into the outbox, once: putting the same again changes nothing.
-- KEYS[1] said (zset: id by time)  KEYS[2] outbox (hash: id to text)  KEYS[3] due (zset: id by the next try)
-- ARGV[1] id  ARGV[2] body (JSON)  ARGV[3] for how long it is remembered, in ms
-- answers 1 when it is new, else 0

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local at = string.format('%.0f', now)

if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[3])))
redis.call('HSET', KEYS[2], ARGV[1], cjson.encode({ body = ARGV[2], put_at = now }))
redis.call('ZADD', KEYS[3], at, ARGV[1])
redis.call('ZADD', KEYS[1], at, ARGV[1])
return 1
