-- Write what the holder of the lease decided, and give the lease back, or go on with the next link. Numbered, see append.
-- ARGV[4] token  ARGV[5] number of the command
-- ARGV[6] above 0: keep token and lease for the next link, for so many ms, unless the turn ends or has to wait
-- ARGV[7] move (JSON): state, next, fields {name: text}, attempt, facts {name: text}, counters {name: n}, delay_ms,
--         outcome ('' = goes on), answer {response, step, step_source, error (JSON text)}, markers (JSON text),
--         end_counters (counted only if the turn really ends with this outcome),
--         run_ended (true when an agent run ended with this), judged (true when an answer was judged),
--         park_ms (above 0: the turn waits so long for a decision in the inbox)
-- ARGV[8], ARGV[9] kind, data (JSON) of the events; and so on
-- answers {'done', next turn of the session or '', outcome or ''} | {'fenced', '', ''}
--         | {'claimed', now, record ...}: the holder has the next link
--         | {'behind', number of the last command that is known here, ''}, see append

if not EXISTS then return { 'fenced', '', '' } end
if turn.last_token == ARGV[4] and tonumber(ARGV[5]) <= number('last_cmd') then
  return { 'done', turn.last_head or '', turn.last_outcome or '' }
end
if turn.token ~= ARGV[4] or turn.state == 'finished' then return { 'fenced', '', '' } end
if tonumber(ARGV[5]) > number('cmd') + 1 then return { 'behind', number('cmd'), '' } end
-- Its reply was lost, and it went on.
if tonumber(ARGV[5]) <= number('cmd') then return claimed() end
local move = cjson.decode(ARGV[7])
local goes_on = tonumber(ARGV[6]) > 0 and move.next ~= '' and move.delay_ms <= 0
-- Whose run ended: read before this very command hands the turn on to another model.
local WORKS = (turn.stage_model or '') ~= '' and (string.gsub(turn.stage_model, '|', '_')) or MODEL

redis.call('HSET', TURN, 'cmd', ARGV[5])
if turn.accepted then redis.call('HDEL', TURN, 'accepted') end
turn.accepted = nil
for name, value in pairs(move.fields) do
  redis.call('HSET', TURN, name, value)
  turn[name] = value
end
for name, value in pairs(move.facts) do
  redis.call('HSET', ATTEMPTS, move.attempt .. ':' .. name, value)
end
local counters = move.counters
if move.run_ended then
  redis.call('HSET', ATTEMPTS, move.attempt .. ':finished_at', int(NOW))
  redis.call('HSET', TURN, 'since', int(NOW))
  took(counters, 'time.agent', NOW - number('since'), '|' .. WORKS)
end
if move.judged then took(counters, 'time.validation', NOW - number('since')) end
for i = 8, #ARGV, 2 do emit(ARGV[i], ARGV[i + 1]) end

local head, outcome = '', move.outcome
if (turn.stop or '') ~= '' and outcome ~= turn.stop then
  -- Called off while it was being judged: an accepted cancel is kept.
  outcome = turn.stop
  head = give_up(outcome, counters)
elseif outcome ~= '' then
  for name, by in pairs(move.end_counters) do counters[name] = by end
  move.answer.markers = move.markers
  head = finish(outcome, move.answer, counters)
else
  outcome = called_off(move.state == 'queued')
  if outcome ~= '' then
    head = give_up(outcome, counters)
  else
    count(counters)
    if goes_on then
      begin(move.next, move.state == 'queued' and 'running' or 'validating', ARGV[4], tonumber(ARGV[6]),
        cjson.encode(turn.worker))
      return claimed()
    end
    redis.call('HSET', TURN, 'token', '', 'lease_until', 0, 'state', move.state, 'next', move.next, 'announced', 1,
      'not_before', int(move.delay_ms > 0 and NOW + move.delay_ms or 0))
    if move.park_ms > 0 then
      -- Nobody holds it and nothing is announced. Its deadline moves on by the longest time it can lie here.
      local deadline = number('deadline_at')
      turn.deadline_at = int(deadline > 0 and deadline + move.park_ms or 0)
      redis.call('HSET', TURN, 'parked_at', int(NOW), 'decide_by', int(NOW + move.park_ms),
        'deadline_at', turn.deadline_at)
      redis.call('ZADD', INBOX, int(NOW), ID)
      look_again(NOW + move.park_ms)
    else
      -- The caller announces at once, unless there is a delay: then a reaper does when the time has come.
      look_again(NOW + (move.delay_ms > 0 and move.delay_ms or SETTINGS.announce_ms))
    end
  end
end
redis.call('HSET', TURN, 'last_token', ARGV[4], 'last_cmd', ARGV[5], 'last_head', head, 'last_outcome', outcome)
return { 'done', head, outcome }
