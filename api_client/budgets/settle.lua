#!lua
-- Replace a turn's reservation by its real cost, only if the reservation is unchanged since it was read.
-- KEYS[1] spending of the reservation's day (hash)  KEYS[2] open reservations (hash)  KEYS[3] prices (hash)
-- ARGV[1] turn id  ARGV[2] the reservation as read  ARGV[3] the cost of the turn, in millionths of a dollar
-- ARGV[4] 1 if the turn has ended, 0 if it continues, '' if there is no such turn
-- ARGV[5] the cost of a run, '' if it says nothing about the next run
-- answers 1 if the turn was charged

if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
-- HINCRBY rejects '-0'.
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
if ARGV[5] ~= '' then -- a single dear run is forgotten gradually
  local known = tonumber(redis.call('HGET', KEYS[3], reserved.model) or '0')
  local price = math.max(tonumber(ARGV[5]), math.floor(known * 0.95))
  redis.call('HSET', KEYS[3], reserved.model, whole(price))
end
return 1
