#!lua
-- Charge what a turn has cost in place of what was set aside for it.
-- Once: only while its reservation is as it was read.
-- KEYS[1] spending of the reservation's day (hash)  KEYS[2] open reservations (hash)  KEYS[3] prices (hash)
-- ARGV[1] turn id  ARGV[2] the reservation as it was read  ARGV[3] what the turn has cost, in millionths of a dollar
-- ARGV[4] 1 when the turn has ended, 0 when it goes on, '' when there is no such turn
-- ARGV[5] what a run of it has cost, '' when it tells nothing about the next one's
-- answers 1 when it was charged

if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
-- HINCRBY takes no '-0'.
local function whole(number)
  return string.format('%.0f', math.max(-2 ^ 53, math.min(2 ^ 53, math.floor(number + 0.5))))
end
local reserved = cjson.decode(ARGV[2])
local cost = tonumber(ARGV[3])
local more = whole(cost - reserved.amount)
local aside = whole(ARGV[4] == '0' and cost - reserved.amount or -reserved.amount)
for _, scope in ipairs(reserved.scopes) do
  redis.call('HINCRBY', KEYS[1], scope, more)
  redis.call('HINCRBY', KEYS[1], 'aside|' .. scope, aside)
end
if ARGV[4] == '0' then
  reserved.amount = cost
  reserved.guessed = nil
  redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(reserved))
  return 1
end
redis.call('HDEL', KEYS[2], ARGV[1])
if ARGV[5] ~= '' then -- one dear run is forgotten little by little
  local known = tonumber(redis.call('HGET', KEYS[3], reserved.model) or '0')
  local price = math.max(tonumber(ARGV[5]), math.floor(known * 0.95))
  redis.call('HSET', KEYS[3], reserved.model, whole(price))
end
return 1
