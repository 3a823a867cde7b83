-- Take a turn for one link of its chain. The worker made the token, so a repeat after a lost reply finds its own claim.
-- ARGV[4] link, such as turn.run/1  ARGV[5] token  ARGV[6] lease in ms  ARGV[7] worker (JSON string)
-- ARGV[8] 1 when this process works on nothing else, else 0  ARGV[9] strikes that make a turn dead
-- answers {'claimed', now, record ...} | {'refused', why}

if not EXISTS then return { 'refused', 'missing' } end
if turn.token == ARGV[5] then
  local again = { 'claimed', int(NOW) }
  for _, part in ipairs(flat) do again[#again + 1] = part end
  return again
end
if turn.state == 'finished' then return { 'refused', 'finished' } end
-- A token is good for one claim: one that is delivered late, after its holder was lost or committed, takes nothing.
if string.find(turn.tokens or '', ARGV[5], 1, true) then return { 'refused', 'late' } end
if (turn.token or '') ~= '' then return { 'refused', 'held' } end
if turn.next ~= ARGV[4] then return { 'refused', 'not_next' } end
if not is_head() then return { 'refused', 'waiting' } end
if called_off(turn.state == 'queued') ~= '' then
  look_again(NOW)
  return { 'refused', 'called_off' }
end
if number('not_before') > NOW then return { 'refused', 'early' } end
-- The delivery before the last strike runs in a process of its own: only what dies alone is to blame for it.
if ARGV[8] ~= '1' and number('strikes') >= tonumber(ARGV[9]) - 1 then return { 'refused', 'alone' } end

local state = turn.state == 'queued' and 'running' or 'validating'
local link_attempt = string.match(ARGV[4], '/(%d+)$')
-- A phase may have waited for others: its time begins now.
if number('deadline_at') == 0 and number('deadline_ms') > 0 then
  turn.deadline_at = int(NOW + number('deadline_ms'))
  redis.call('HSET', TURN, 'deadline_at', turn.deadline_at)
end
redis.call('HSET', TURN, 'state', state, 'token', ARGV[5], 'tokens', (turn.tokens or '') .. ARGV[5] .. ' ',
  'cmd', 0, 'lease_until', int(NOW + tonumber(ARGV[6])), 'worker', cjson.decode('[' .. ARGV[7] .. ']')[1],
  'attempt', link_attempt, 'not_before', 0, 'announced', 1, 'alone', ARGV[8])
look_again(NOW + tonumber(ARGV[6]))
if state == 'running' then
  local delivery = redis.call('HINCRBY', TURN, 'delivery', 1)
  local counters = { ['delivery.started'] = 1 }
  if delivery == 1 then took(counters, 'time.wait', NOW - number('created_at')) end
  if number('alive_at') > 0 then took(counters, 'time.recovery', NOW - number('alive_at')) end
  redis.call('HSET', TURN, 'since', int(NOW), 'alive_at', 0)
  redis.call('HSETNX', ATTEMPTS, link_attempt .. ':started_at', int(NOW))
  redis.call('HSET', ATTEMPTS, link_attempt .. ':worker', cjson.decode('[' .. ARGV[7] .. ']')[1])
  redis.call('HINCRBY', ATTEMPTS, link_attempt .. ':deliveries', 1)
  count(counters)
  emit('attempt.started', '{"attempt":' .. link_attempt .. ',"delivery":' .. int(delivery) ..
    ',"max_attempts":' .. int(number('allowed') > 0 and number('allowed') or cjson.decode(turn.request).max_attempts or 0) .. ',"worker":' .. ARGV[7] .. '}')
end
local reply = { 'claimed', int(NOW) }
for _, part in ipairs(redis.call('HGETALL', TURN)) do reply[#reply + 1] = part end
return reply
