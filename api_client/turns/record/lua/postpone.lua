#!lua
-- Put off turns whose announcements still wait, unless the turns changed since they were read.
-- KEYS[1] due (zset)  KEYS[2...] turns (hashes)
-- ARGV of each turn: id, the score as read, the new score, the time of the announcement (ms)
-- answers the number of turns put off

local done = 0
for i = 2, #KEYS do
  local at = (i - 2) * 4
  local id, seen, later, announced_at = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local score = redis.call('ZSCORE', KEYS[1], id)
  if score and tonumber(score) == tonumber(seen) and redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('HSET', KEYS[i], 'announced', 0, 'announced_at', announced_at)
    redis.call('ZADD', KEYS[1], later, id)
    done = done + 1
  end
end
return done
