-- Handle a due turn: reclaim it from a dead worker, announce it again, or end it.
-- Several reapers may do so at once.
-- args: may_take
-- may_take: 1 if this reaper may reclaim leases (it was awake for a whole lease), else 0
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
  -- No lease is this long: the clock was set back. A living holder renews; otherwise the lease runs from now.
  if number('lease_until') > NOW + 2 * LEASE_MS then set('lease_until', NOW + LEASE_MS) end
  if number('lease_until') > NOW then
    look_again(number('lease_until'))
    return answer('held')
  end
  -- Left due: another reaper that was awake may reclaim the turn at once.
  if may_take ~= '1' then return answer('later') end
  local running = turn.state == 'running'
  -- The time without a sign of life: since the last renewal.
  local silent = math.max(0, NOW - number('lease_until') + LEASE_MS)
  count('delivery.lost|' .. turn.state)
  emit('attempt.lost', '{"attempt":' .. number('attempt') .. ',"delivery":' .. number('delivery') ..
    ',"during":"' .. turn.state .. '","silent_ms":' .. silent .. '}')
  -- The first reaper to ask reports the end of the lost task to operators.
  if (turn.task or '') ~= '' then set('lost', turn.task .. ' ' .. (turn.worker or '')) end
  set('token', '')
  set('lease_until', 0)
  set('state', running and 'queued' or 'ran')
  set('strikes', number('strikes') + 1)
  -- A lost run is charged the amount set aside for it, because its usage is unknown.
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
  -- The client that wanted to interrupt the preceding turn may have died before it could.
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
-- Each announcement doubles the delay before the next, up to 64 times.
set('announced', held and 1 or number('announced') + 1)
look_again(NOW + ANNOUNCE_MS * 2 ^ math.min(number('announced') - 1, 6))
return answer('announce', turn.next)
