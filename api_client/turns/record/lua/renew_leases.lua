#!lua
-- Renew the leases of many turns. Idempotent. Also revives expired leases that nobody reaped.
-- KEYS[1] due (zset)  KEYS[2...] turns (hashes)
-- ARGV[1] lease in ms  ARGV[2...] id and token of each turn, in the order of KEYS
-- answers for each turn, in a row: held | fenced | damaged, then the reason to stop, or ''

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lease_until = now + tonumber(ARGV[1])
local function int(value) return string.format('%.0f', value) end

local answer = {}
local function say(what, stop)
  answer[#answer + 1] = what
  answer[#answer + 1] = stop
end

for i = 2, #KEYS do
  local id, token = ARGV[2 * i - 2], ARGV[2 * i - 1]
  -- One damaged record must not cost other turns their leases.
  local turn = redis.pcall('HMGET', KEYS[i], 'token', 'stop', 'deadline_at')
  if turn.err then
    say('damaged', '')
  elseif turn[1] ~= token then
    say('fenced', '')
  else
    redis.call('HSET', KEYS[i], 'lease_until', int(lease_until))
    local deadline = tonumber(turn[3] or '0') or 0
    redis.call('ZADD', KEYS[1], int(now < deadline and math.min(deadline, lease_until) or lease_until), id)
    say('held', turn[2] or '')
  end
end
return answer
