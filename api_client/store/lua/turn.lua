-- What happens to a turn: it is looked at, begun, ended. Follows record.lua.

-- The turn's model, as a label.
local function model() return turn.model or 'other' end

-- When somebody must look at the turn again: never later than at its deadline, as long as that is still to come.
local function look_again(at)
  local deadline = number('deadline_at')
  if NOW < deadline and deadline < at then at = deadline end
  share('ZADD', DUE, at, ID)
end

-- When a turn that waits for its session must be looked at: at its deadline, or, without one, now and then.
local function far()
  local deadline = number('deadline_at')
  return deadline > 0 and deadline or NOW + 64 * ANNOUNCE_MS
end

local function is_head() return redis.call('LINDEX', SESSION, 0) == ID end

-- Too late to be cancelled: an accepted answer is on its way to the session's folder.
local function is_sealed() return (turn.sealed or '') ~= '' or (turn.accepted or '') ~= '' end

-- Declared here and made where turns are held back.
local end_holds
local pace

-- The turn needs no place of its owner for now; the next one of that owner may go.
local function give_place()
  if number('most') == 0 then return end
  after(function()
    leave_place(ID, turn.owner or '')
    fill_up()
  end)
end

-- End the turn: the one place where an outcome is written. Answers the id of the session's next turn, or ''.
-- answer: {name, text, ...} for the record  ending: the same as JSON, for the event
local function finish(outcome, answer, ending)
  local line = redis.call('LRANGE', SESSION, 0, 1)
  -- One that only waited leaves the session's head, which may be at work, as it is.
  local head = line[1] == ID and line[2] or ''
  share('ZADD', FINISHED, NOW, ID)
  if outcome == 'dead' then share('ZADD', DEAD, NOW, ID) end
  share('LREM', SESSION, 0, ID)
  share('ZREM', DUE, ID)
  if turn.state == 'suspended' then
    share('ZREM', INBOX, ID)
    turn.still_ms = number('still_ms') + NOW - number('suspended_at')
  end
  end_holds()
  if number('delivery') == 0 then after(function() leave(ID) end) end
  give_place()
  -- The caller lines up the session's next turn; should it die first, a reaper finds it here, or at its deadline.
  if head ~= '' then share('ZADD', DUE, 'LT', NOW + ANNOUNCE_MS, head) end
  set('state', 'finished')
  set('outcome', outcome)
  set('finished_at', NOW)
  set('next', '')
  set('token', '')
  set('lease_until', 0)
  for i = 1, #answer, 2 do set(answer[i], answer[i + 1]) end
  local step = (turn.step or '') ~= '' and turn.step or 'none'
  local again = number('retries') > 0 and '|1' or '|0'
  count('turn.finished|' .. outcome .. '|' .. model() .. '|' .. (turn.flow or 'none') .. '|' .. step .. again)
  if (turn.policy or '') ~= '' then count('policy.finished|' .. turn.policy .. '|' .. outcome .. again) end
  took('time.turn', NOW - number('created_at') - number('still_ms'), '')
  emit('turn.finished', '{"outcome":"' .. outcome .. '","success":' ..
    tostring(string.sub(outcome, 1, 6) == 'passed') ..
    ',"attempts":' .. number('attempt') .. ',"deliveries":' .. number('delivery') .. ',' .. ending .. '}')
  return head
end

-- The budget the turn has used up: '' | tokens | cost. Asked only before another agent run.
local function spent()
  if number('token_budget') > 0 and number('tokens_used') >= number('token_budget') then return 'tokens' end
  if number('cost_budget') > 0 and number('cost_used') >= number('cost_budget') then return 'cost' end
  return ''
end

-- End a turn that nobody judged: cancelled, expired or dead, with the message for the user in the turn's language.
local function give_up(outcome)
  local messages = GIVEN_UP()[outcome]
  local reason = outcome
  if outcome == 'expired' then
    reason = spent()
    if reason == '' then reason = 'deadline' end
  end
  local fault = cjson.encode({ code = outcome, message = messages[turn.locale] or messages.en, reason = reason })
  return finish(outcome, { 'response', '', 'step', '', 'step_source', '', 'error', fault, 'markers', '[]' },
    '"response":"","step":"","step_source":"","markers":[],"error":' .. fault)
end

-- The outcome a turn must end with now: '' | cancelled | expired. will_run: the agent is to run next.
local function called_off(will_run)
  if is_sealed() then return '' end
  if (turn.stop or '') ~= '' then return turn.stop end
  if number('deadline_at') > 0 and number('deadline_at') <= NOW then return 'expired' end
  if will_run and spent() ~= '' then return 'expired' end
  return ''
end

-- Go on with a suspended turn as somebody decided, or as its time-out does. A worker carries it out with the next link.
-- Its clock stood still meanwhile: the deadline was put off by the whole time-out, and comes back by the rest of
-- it. An accepted answer must not expire on its way, so some time is always left.
local function decide(kind, by, note, said, name)
  set('still_ms', number('still_ms') + NOW - number('suspended_at'))
  local deadline = number('deadline_at')
  if deadline > 0 then
    set('deadline_at', math.max(deadline + NOW - number('decide_by'), NOW + RESUME_MS))
  end
  set('state', 'ran')
  set('next', 'turn.resume/' .. number('attempt'))
  set('announced', 1)
  set('not_before', 0)
  set('decide_by', 0)
  set('decision', cjson.encode({ kind = kind, by = by, ['for'] = name, note = note, text = said, at = NOW / 1000 }))
  share('ZREM', INBOX, ID)
  look_again(NOW + ANNOUNCE_MS)
  count('turn.decided|' .. kind)
  emit('turn.decided', '{"attempt":' .. number('attempt') .. ',"kind":"' .. kind .. '","by":' ..
    cjson.encode(by) .. ',"for":' .. cjson.encode(name) .. ',"note":' .. cjson.encode(note) .. '}')
end

-- How many attempts the turn has: as requested, or as another model or a person was allowed.
local function most_attempts()
  if number('allowed') > 0 then return number('allowed') end
  if turn.max_attempts then return number('max_attempts') end
  return cjson.decode(redis.call('HGET', TURN, 'request')).max_attempts or 0 -- a record of version 1
end

-- Begin a link of the chain, such as turn.run/1, for the holder of this token: the one place where work starts.
-- state: running | validating
local function begin(link, state, token)
  local attempt = string.match(link, '/(%d+)$')
  local again = attempt == turn.attempt and number('delivery') > 0
  -- A holder that goes on is due already: when its lease would have ended. Not so if the clock was set back since.
  if token ~= turn.token or number('lease_until') > NOW + LEASE_MS then look_again(NOW + LEASE_MS) end
  set('state', state)
  set('next', link)
  set('token', token)
  set('lease_until', NOW + LEASE_MS)
  set('attempt', attempt)
  set('not_before', 0)
  set('announced', 1)
  if state ~= 'running' then return end
  pace()
  if number('most') > 0 then share('ZADD', AT_WORK, 0, plain(turn.owner or '') .. '|' .. ID) end
  set('delivery', number('delivery') + 1)
  count('delivery.started')
  if number('delivery') == 1 then took('time.wait', NOW - number('created_at'), '') end
  if number('alive_at') > 0 then
    took('time.recovery', NOW - number('alive_at'), '')
    set('alive_at', 0)
  end
  set('since', NOW)
  local before = again and redis.call('HMGET', ATTEMPTS, attempt .. ':deliveries', attempt .. ':started_at') or {}
  fact(attempt, 'deliveries', (tonumber(before[1] or '0') or 0) + 1)
  if not before[2] then fact(attempt, 'started_at', NOW) end
  fact(attempt, 'worker', turn.worker)
  emit('attempt.started', '{"attempt":' .. attempt .. ',"delivery":' .. number('delivery') ..
    ',"max_attempts":' .. most_attempts() .. ',"worker":' .. cjson.encode(turn.worker) .. '}')
end

-- What a claim answers: the record as it is now.
local function claimed()
  flush()
  return { 'claimed', NOW, redis.call('HGETALL', TURN) }
end
-- What a holder is answered that goes on: the fields that it does not know yet.
local function continued()
  flush()
  return { 'continued', NOW, fields }
end
