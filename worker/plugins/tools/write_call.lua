-- Write a row of the call log, and its result. Only the holder of the turn's lease may. Repeating changes nothing.
-- KEYS 1: the turn's record  2: hash of rows  3: hash of results  4: list of pending counters
-- ARGV 1: token  2: the row's name  3: the row (JSON)  4: the result (JSON), or ''  5: milliseconds to keep both
--      6: lines for the counters, or ''
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if ARGV[6] ~= '' and redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then
  local clock = redis.call('TIME')
  redis.call('RPUSH', KEYS[4], clock[1] * 1000 + math.floor(clock[2] / 1000) .. '\n' .. ARGV[6])
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
end
return 1
