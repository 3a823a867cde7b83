-- The life of a turn: making it due, beginning and ending it. Follows record.lua.

-- The turn's model, as a label.
local function model() return turn.model or 'other' end

-- Make the turn due, no later than its deadline if that still lies ahead.
local function look_again(at)
  local deadline = number('deadline_at')
  if NOW < deadline and deadline < at then at = deadline end
  share('ZADD', DUE, at, ID)
end

-- Make a turn that waits for its session due: at its deadline or, without a deadline, now and then.
local function far()
  local deadline = number('deadline_at')
  return deadline > 0 and deadline or NOW + 64 * ANNOUNCE_MS
end

local function is_head() return redis.call('LINDEX', SESSION, 0) == ID end

-- Return whether an accepted answer is being published, so that a cancellation comes too late.
local function is_sealed() return (turn.sealed or '') ~= '' or (turn.accepted or '') ~= '' end

-- Declared here and made where turns are held back.
local end_holds
local pace

-- Free the turn's slot for now; the owner's next turn may start.
local function give_place()
  if number('most') == 0 then return end
  after(function()
    leave_place(ID, turn.owner or '')
    fill_up()
  end)
end

-- End the turn. All outcomes are written here. Returns the id of the session's next turn, or ''.
-- answer: {name, text, ...} for the record  ending: the same as JSON, for the event
local function finish(outcome, answer, ending)
  local line = redis.call('LRANGE', SESSION, 0, 1)
  -- A turn that only waited leaves the first turn of its session alone, which may be running.
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
  if number('delivery') == 0 then after(function() leave(turn.place or '') end) end
  give_place()
  if outcome ~= 'dead' then leave_history() end -- a dead letter's messages stay as long as it does
  -- The caller starts the session's next turn; if the caller dies, a reaper finds the turn here or at its deadline.
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
  local labels = ''
  for _, name in ipairs(COUNTED_LABELS()) do labels = labels .. '|' .. (turn[name] or 'none') end
  count('turn.finished|' .. outcome .. '|' .. model() .. labels .. '|' .. step .. again)
  for name, counter in pairs(LABEL_COUNTERS()) do
    if turn[name] then count(counter .. '|' .. turn[name] .. '|' .. outcome .. again) end
  end
  took('time.turn', NOW - number('created_at') - number('still_ms'), '')
  emit('turn.finished', '{"outcome":"' .. outcome .. '","success":' ..
    tostring(string.sub(outcome, 1, 6) == 'passed') ..
    ',"attempts":' .. number('attempt') .. ',"deliveries":' .. number('delivery') .. ',' .. ending .. '}')
  return head
end

-- Return the limit that the turn has reached: '' | tokens | cost. Asked only before another agent run.
local function spent()
  if number('token_limit') > 0 and number('tokens_used') >= number('token_limit') then return 'tokens' end
  if number('cost_limit') > 0 and number('cost_used') >= number('cost_limit') then return 'cost' end
  return ''
end

-- End a turn without a verdict: cancelled, expired or dead, with the user's message in the turn's language.
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

-- Return the outcome that a turn must end with now: '' | cancelled | expired. will_run: the agent runs next.
local function called_off(will_run)
  if is_sealed() then return '' end
  if (turn.stop or '') ~= '' then return turn.stop end
  if number('deadline_at') > 0 and number('deadline_at') <= NOW then return 'expired' end
  if will_run and spent() ~= '' then return 'expired' end
  return ''
end

-- Continue a suspended turn after a decision or a time-out; a worker carries the decision out. The turn's clock stood
-- still: the deadline was moved by the whole time-out, and moves back by the unused part. Some time always remains, so
-- that an accepted answer does not expire.
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

-- Return the turn's number of attempts: as requested, or as allowed for another model or by a person.
local function most_attempts()
  if number('allowed') > 0 then return number('allowed') end
  if turn.max_attempts then return number('max_attempts') end
  return cjson.decode(redis.call('HGET', TURN, 'request')).max_attempts or 0 -- a record of version 1
end

-- Begin a task, such as turn.run/1, for the holder of this token. All work starts here.
-- state: running | validating
local function begin(link, state, token)
  local attempt = string.match(link, '/(%d+)$')
  local again = attempt == turn.attempt and number('delivery') > 0
  -- A continuing holder is due at the end of its lease, unless the clock was set back since.
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

-- Return the record for the answer of a claim, and what this command changed of it.
local function claimed()
  flush()
  return { 'claimed', NOW, record or redis.call('HGETALL', TURN), fields }
end
-- Return the fields that a continuing holder does not know yet.
local function continued()
  flush()
  return { 'continued', NOW, fields }
end
