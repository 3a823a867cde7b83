#!lua
-- Add pending counters to the totals and the buckets of their time, once.
-- KEYS[1] pending (list)  KEYS[2] folds (string: the number of folds)  KEYS[3] finished (zset)
-- KEYS[4...] the hashes to add to
-- ARGV[1] KEYS[2] when the entries were read  ARGV[2] how many entries to take  ARGV[3] retention in ms
-- ARGV[4...] for each hash: its life in s (0: for ever), number of counters; their names; their increments
-- answers 1, or 0 if another reaper was first

if (redis.call('GET', KEYS[2]) or '0') ~= ARGV[1] then return 0 end
redis.call('INCR', KEYS[2])
redis.call('LTRIM', KEYS[1], ARGV[2], -1)
local at = 4
for place = 4, #KEYS do
  local life, many = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local first, last = at + 2, at + 1 + many
  local stored = redis.call('HMGET', KEYS[place], unpack(ARGV, first, last))
  local added = {}
  for i = first, last do
    added[#added + 1] = ARGV[i]
    added[#added + 1] = string.format('%.0f', (tonumber(stored[i - first + 1] or '0') or 0) + tonumber(ARGV[i + many]))
  end
  redis.call('HSET', KEYS[place], unpack(added))
  if life > 0 then redis.call('EXPIRE', KEYS[place], math.ceil(math.min(life, 2 ^ 43))) end
  at = at + 2 + 2 * many
end
local clock = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', clock[1] * 1000 - tonumber(ARGV[3])))
return 1
