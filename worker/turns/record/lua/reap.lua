-- Look at a turn that is due: take it from a dead worker, announce it again, or end it. Any number of reapers may do so.
-- ARGV[4] 1 when this reaper may take leases (it was awake for a whole lease itself), else 0
-- ARGV[5] lease in ms  ARGV[6] strikes that make a turn dead
-- answers {what, next link or '', session id, next turn of the session or '', outcome or ''};
--   what: gone | early | held | later | parked | waiting | interrupt (head is to be cancelled) | announce | finished

local function answer(what, link, head, outcome)
  return { what, link or '', turn.session_id or '', head or '', outcome or '' }
end

if not EXISTS or turn.state == 'finished' then
  redis.call('ZREM', DUE, ID)
  return answer('gone')
end
local score = redis.call('ZSCORE', DUE, ID)
if score and tonumber(score) > NOW then return answer('early') end

local held = (turn.token or '') ~= ''
if held then
  -- No lease is as long as this: the clock was set back since. The holder, if it lives, beats; else its time runs now.
  if number('lease_until') > NOW + 2 * tonumber(ARGV[5]) then
    turn.lease_until = int(NOW + tonumber(ARGV[5]))
    redis.call('HSET', TURN, 'lease_until', turn.lease_until)
  end
  if number('lease_until') > NOW then
    look_again(number('lease_until'))
    return answer('held')
  end
  -- Left due: another reaper, which was not away, may take it at once.
  if ARGV[4] ~= '1' then return answer('later') end
  local running = turn.state == 'running'
  redis.call('HSET', TURN, 'token', '', 'lease_until', 0, 'state', running and 'queued' or 'ran')
  local strikes = redis.call('HINCRBY', TURN, 'strikes', 1)
  -- How long nobody has heard of it: since its last beat.
  local silent = math.max(0, NOW - number('lease_until') + tonumber(ARGV[5]))
  count({ ['delivery.lost|' .. turn.state] = 1 })
  emit('attempt.lost', '{"attempt":' .. int(number('attempt')) .. ',"delivery":' .. int(number('delivery')) ..
    ',"during":"' .. turn.state .. '","silent_ms":' .. int(silent) .. '}')
  -- A lost run is charged what was set aside for it: nobody knows what it used.
  if running then
    turn.tokens_used = redis.call('HINCRBY', TURN, 'tokens_used', number('token_reserve'))
    turn.cost_used = redis.call('HINCRBY', TURN, 'cost_used', number('cost_reserve'))
    turn.state = 'queued'
    redis.call('HSET', TURN, 'alive_at', int(NOW - silent))
  end
  if called_off() == '' and strikes >= tonumber(ARGV[6]) and turn.alone == '1' then
    return answer('finished', '', give_up('dead'), 'dead')
  end
end

if turn.state == 'parked' then
  if number('decide_by') > NOW then
    look_again(number('decide_by'))
    return answer('parked')
  end
  decide(turn.decide_default, 'timeout', '', '', '')
  return answer('announce', turn.next)
end

local outcome = called_off(turn.state == 'queued')
if outcome ~= '' then return answer('finished', '', give_up(outcome), outcome) end
if not is_head() then
  -- The client that asked to interrupt the turn before it may have died before it could.
  if turn.double_text == 'interrupt' then
    look_again(NOW + SETTINGS.announce_ms)
    return answer('interrupt', '', redis.call('LINDEX', SESSION, 0) or '')
  end
  look_again(far())
  return answer('waiting')
end
if number('not_before') > NOW then
  look_again(number('not_before'))
  return answer('early')
end
-- Each announcement doubles the wait for the next, up to 64 times.
local announced = held and 1 or number('announced') + 1
redis.call('HSET', TURN, 'announced', announced)
look_again(NOW + SETTINGS.announce_ms * 2 ^ math.min(announced - 1, 6))
return answer('announce', turn.next)
