#!lua
-- Charge what a turn has cost in place of what was set aside for it.
-- Once: only while its reservation is as it was read.
-- KEYS[1] spending of the reservation's day (hash)  KEYS[2] open reservations (hash)
-- ARGV[1] turn id  ARGV[2] the reservation as it was read  ARGV[3] what the turn has cost, in millionths of a dollar
-- ARGV[4] 1 when the turn has ended, 0 when it goes on, '' when there is no such turn
-- answers 1 when it was charged

if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
local reserved = cjson.decode(ARGV[2])
local cost = tonumber(ARGV[3])
local more = string.format('%.0f', cost - reserved.amount)
for _, scope in ipairs(reserved.scopes) do redis.call('HINCRBY', KEYS[1], scope, more) end
if ARGV[4] == '0' then
  reserved.amount = cost
  redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(reserved))
  return 1
end
redis.call('HDEL', KEYS[2], ARGV[1])
if ARGV[4] == '1' then
  redis.call('HINCRBY', KEYS[1], 'turns|' .. reserved.model, 1)
  redis.call('HINCRBY', KEYS[1], 'cost|' .. reserved.model, ARGV[3])
end
return 1
