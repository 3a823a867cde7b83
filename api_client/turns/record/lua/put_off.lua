#!lua
-- Look at turns again later, because their announcements still wait.
-- Only those that nobody touched since they were read.
-- KEYS[1] due (zset)  KEYS[2...] turns (hashes)
-- ARGV of each turn: id, the score that was read, the new score, when it was announced (ms)
-- answers how many were put off

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
