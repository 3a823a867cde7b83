-- Estimate how many turns start before a turn in the fair queue, if no new turns arrive. Follows fair_queue.lua.
-- Owners are read one by one, up to MOST; each further owner counts as one turn.
-- KEYS as of release.lua  ARGV[1] the turn's place, as its record has it
-- answers the number, or -1 if the turn is not in the queue

local MOST = 50
local place = entry_at(ARGV[1])
if not place then return -1 end

local function waiting_of(priority) return redis.call('ZLEXCOUNT', WAITING, within(priority)) end
local function rank_in(who, at) return redis.call('ZLEXCOUNT', WAITING, '[' .. who .. '|', '(' .. at) end

local own = rank_in(place.who, place.at)
-- When the turn starts, on the clock of its priority.
local goes_at = time_of(place) + own / place.weight
local owners = owners_of(place.priority)
local number = own + math.max(0, redis.call('ZCOUNT', owners, 0, math.min(goes_at, AWAY - 1)) - MOST)
local found = redis.call('ZRANGEBYSCORE', owners, 0, math.min(goes_at, AWAY - 1), 'WITHSCORES', 'LIMIT', 0, MOST)
for i = 1, #found, 2 do
  local first = found[i] ~= place.who and first_of(found[i])
  local other = first and read_entry(first)
  if other then
    local before = math.floor((goes_at - tonumber(found[i + 1])) * other.weight) + 1
    number = number + math.min(before, rank_in(found[i], found[i] .. '}'))
  end
end
-- One of SHARE turns is a background turn.
if place.priority == 'background' then
  return number + math.min(waiting_of('interactive'), (number + 1) * (SHARE - 1))
end
return number + math.min(waiting_of('background'), math.floor(number / (SHARE - 1)))
