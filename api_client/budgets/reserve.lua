#!lua
-- Set aside what a turn may cost, if every budget it counts for has room. Once: a repeat finds the reservation.
-- KEYS[1] spending of the day (hash: scope -> millionths of a dollar, set aside included; turns|MODEL, cost|MODEL)
-- KEYS[2] open reservations (hash: turn id -> JSON {day, at, amount, model, scopes})
-- ARGV[1] turn id  ARGV[2] day  ARGV[3] what the turn may cost at most, or '': as much as the model's turns cost so far
-- ARGV[4] model  ARGV[5] life of the day's spending in ms  ARGV[6...] scope, limit; and so on
-- answers {'reserved'} | {'over', scope, spent, limit}

if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return { 'reserved' } end
local scopes = {}
for i = 6, #ARGV, 2 do
  local spent = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  if spent >= tonumber(ARGV[i + 1]) then return { 'over', ARGV[i], string.format('%.0f', spent), ARGV[i + 1] } end
  scopes[#scopes + 1] = ARGV[i]
end
local amount = tonumber(ARGV[3])
if not amount then
  local known = redis.call('HMGET', KEYS[1], 'turns|' .. ARGV[4], 'cost|' .. ARGV[4])
  amount = known[1] and math.floor(tonumber(known[2]) / tonumber(known[1])) or 0
end
for _, scope in ipairs(scopes) do redis.call('HINCRBY', KEYS[1], scope, string.format('%.0f', amount)) end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
local now = tonumber(redis.call('TIME')[1])
local reservation = { day = ARGV[2], at = now, amount = amount, model = ARGV[4], scopes = scopes }
redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(reservation))
return { 'reserved' }
