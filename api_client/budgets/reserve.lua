#!lua
-- Reserve the possible cost of turns if every budget has room for all of them, otherwise reserve nothing. A repeat
-- finds the reservation.
-- KEYS[1] spending of the day (hash: scope -> millionths of a dollar, including reservations; aside|SCOPE -> the
-- reserved part)  KEYS[2] open reservations (hash: turn id -> JSON {day, at, amount, model, scopes, runs, guessed})
-- KEYS[3] prices (hash: model -> the cost of its dearest recent run)
-- ARGV[1] turns (JSON: [{id, model, runs, cap, scopes: [[scope, limit]]}])  ARGV[2] day
-- ARGV[3] life of the day's spending in ms
-- runs: the most runs of the turn  cap: the cost limit before its last run, 0: no limit
-- answers {'reserved'} | {'over', scope, spent, set aside, reserved for earlier turns of ARGV[1], limit}

local function whole(number)
  return string.format('%.0f', math.max(-2 ^ 53, math.min(2 ^ 53, math.floor(number + 0.5))))
end
local turns = {}
for _, each in ipairs(cjson.decode(ARGV[1])) do
  if redis.call('HEXISTS', KEYS[2], each.id) == 0 then turns[#turns + 1] = each end
end
-- A model without a price is taken for as dear as any other.
local dearest
for _, price in ipairs(redis.call('HVALS', KEYS[3])) do dearest = math.max(dearest or 0, tonumber(price)) end
local more = {}
for at, each in ipairs(turns) do
  local left
  for _, scope in ipairs(each.scopes) do
    local spent = tonumber(redis.call('HGET', KEYS[1], scope[1]) or '0')
    local ahead = more[scope[1]] or 0
    if spent + ahead >= scope[2] then
      local aside = tonumber(redis.call('HGET', KEYS[1], 'aside|' .. scope[1]) or '0')
      return { 'over', scope[1], whole(spent - aside), whole(aside + ahead), whole(ahead), whole(scope[2]) }
    end
    left = math.min(left or scope[2], scope[2] - spent - ahead)
  end
  local price = tonumber(redis.call('HGET', KEYS[3], each.model)) or dearest
  if price then
    local runs = each.runs
    if each.cap > 0 and price > 0 then runs = math.min(runs, math.ceil(each.cap / price)) end
    each.amount = runs * price
  else -- no price is known at all: the turns share what is left
    each.guessed = true
    each.amount = math.floor(left / (#turns - at + 1))
  end
  for _, scope in ipairs(each.scopes) do more[scope[1]] = (more[scope[1]] or 0) + each.amount end
end
for scope, amount in pairs(more) do
  redis.call('HINCRBY', KEYS[1], scope, whole(amount))
  redis.call('HINCRBY', KEYS[1], 'aside|' .. scope, whole(amount))
end
redis.call('PEXPIRE', KEYS[1], whole(math.max(1, tonumber(ARGV[3]))))
local now = tonumber(redis.call('TIME')[1])
for _, each in ipairs(turns) do
  local scopes = {}
  for at, scope in ipairs(each.scopes) do scopes[at] = scope[1] end
  redis.call('HSET', KEYS[2], each.id, cjson.encode({ day = ARGV[2], at = now, amount = each.amount, model = each.model,
    scopes = scopes, runs = each.runs, guessed = each.guessed }))
end
return { 'reserved' }
