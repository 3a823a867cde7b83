-- Look at a turn that is due: take it from a dead worker, announce it again, or end it.
-- Any number of reapers may do so.
-- args: may_take
-- may_take: 1 when this reaper may take leases (it was awake for a whole lease itself), else 0
-- answers {what, next link or '', session id, next turn of the session or '', outcome or ''};
--   what: gone | early | held | later | suspended | held_back | waiting | announce | finished
--         | interrupt (head is to be cancelled)

local function answer(what, link, head, outcome)
  return { what, link or '', turn.session_id or '', head or '', outcome or '' }
end

if not turn.state or turn.state == 'finished' then
  share('ZREM', DUE, ID)
  return answer('gone')
end
local score = redis.call('ZSCORE', DUE, ID)
if score and tonumber(score) > NOW then return answer('early') end

local held = (turn.token or '') ~= ''
if held then
  -- No lease is as long as this: the clock was set back since. The holder, if it lives, beats; else its time runs now.
  if number('lease_until') > NOW + 2 * LEASE_MS then set('lease_until', NOW + LEASE_MS) end
  if number('lease_until') > NOW then
    look_again(number('lease_until'))
    return answer('held')
  end
  -- Left due: another reaper, which was not away, may take it at once.
  if may_take ~= '1' then return answer('later') end
  local running = turn.state == 'running'
  -- How long nobody has heard of it: since its last beat.
  local silent = math.max(0, NOW - number('lease_until') + LEASE_MS)
  count('delivery.lost|' .. turn.state)
  emit('attempt.lost', '{"attempt":' .. number('attempt') .. ',"delivery":' .. number('delivery') ..
    ',"during":"' .. turn.state .. '","silent_ms":' .. silent .. '}')
  -- The first reaper to ask tells operators how its task ended.
  if (turn.task or '') ~= '' then set('lost', turn.task .. ' ' .. (turn.worker or '')) end
  set('token', '')
  set('lease_until', 0)
  set('state', running and 'queued' or 'ran')
  set('strikes', number('strikes') + 1)
  -- A lost run is charged what was set aside for it: nobody knows what it used.
  if running then
    set('tokens_used', number('tokens_used') + number('token_reserve'))
    set('cost_used', number('cost_used') + number('cost_reserve'))
    set('alive_at', NOW - silent)
  end
  if called_off() == '' and number('strikes') >= STRIKES and turn.alone == '1' then
    return answer('finished', '', give_up('dead'), 'dead')
  end
end

if turn.state == 'suspended' then
  if number('decide_by') > NOW then
    look_again(number('decide_by'))
    return answer('suspended')
  end
  decide(cjson.decode(turn.interruption).silence, 'timeout', '', '', '')
  return answer('announce', turn.next)
end

if is_head() and held_back(turn.state == 'queued') then return answer('held_back') end
local outcome = called_off(turn.state == 'queued')
if outcome ~= '' then return answer('finished', '', give_up(outcome), outcome) end
if not is_head() then
  -- The client that asked to interrupt the turn before it may have died before it could.
  if turn.double_text == 'interrupt' then
    look_again(NOW + ANNOUNCE_MS)
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
set('announced', held and 1 or number('announced') + 1)
look_again(NOW + ANNOUNCE_MS * 2 ^ math.min(number('announced') - 1, 6))
return answer('announce', turn.next)
