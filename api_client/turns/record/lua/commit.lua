-- Store the holder's transition; give the lease back, or continue with the next task.
-- Numbered, see append.
-- the last key, if files is not empty (hash): where sessions' files are stored
-- args: token nth# keep task files next state attempt ahead left delay_ms# suspend_ms# outcome ending counters
-- args: end_counters run_ended validated validation_ms# service service_reason service_wait_ms#
-- args: n_fields# n_facts# n_answer# ...
-- keep: 1 keeps token and lease for the next task, unless the turn ends or has to wait
-- task: the id of the next task's Celery task in that case
-- files: the new place of the session's files; '' for no change
-- next, state: the turn's next task and state  attempt: the attempt of the facts
-- ahead: facts of the attempt that a plain command wrote just before, such as text~TOKEN
-- left: such facts without a transition, with their attempts
-- suspend_ms: if above 0, how long the suspended turn waits for a decision
-- outcome: '' while the turn continues  ending: the answer as JSON, for the last event
-- counters, end_counters: see turn.lua; the latter count only if the turn really ends with this outcome
-- service...: what the run says about its model's service, unless its seal said so
-- run_ended, validated: 1 if an agent run ended, if an answer was validated
-- validation_ms: the duration of the validation if both are 1: until the seal, or until now
-- ...: names and texts of the turn's fields, the attempt's facts, the answer's fields; kind, data (JSON) of each event
-- answers {'done', next turn of the session or '', outcome or ''} | {'fenced', '', ''}
--         | {'continued', now, {field, text or number ...}}: the holder has the next link; these fields changed
--         | {'claimed', now, {field, text ...}, {}}: the same to a repeated command
--         | {'behind', number of the last command that is known here, ''}, see append
--         | {'held_back', '', ''}: a run with the verdict on its answer, and no answers are validated now

if not turn.state then return { 'fenced', '', '' } end
if turn.last_token == token and nth <= number('last_cmd') then
  return { 'done', turn.last_head or '', turn.last_outcome or '' }
end
if turn.token ~= token or turn.state == 'finished' then return { 'fenced', '', '' } end
if nth > number('cmd') + 1 then return { 'behind', number('cmd'), '' } end
-- The reply was lost, and the holder continued.
if nth <= number('cmd') then return claimed() end
if run_ended == '1' and validated == '1' and not is_sealed() and validation_held() then
  return { 'held_back', '', '' }
end
-- The store accepted these commands and lost them since.
for name in string.gmatch(ahead, '%S+') do
  if redis.call('HEXISTS', ATTEMPTS, attempt .. ':' .. name) == 0 then return { 'behind', nth - 1, '' } end
end
-- The model of the finished run, read before this command hands the turn to another model.
local worked, began_ms = works(), number('since')

local run_ended_at = (number('sealed') > 0 and number('sealed') or NOW) - validation_ms

set('cmd', nth)
if files ~= '' then share('HSET', KEYS[#KEYS], string.sub(SESSION, -32), files) end
local was_sealed = is_sealed()
if was_sealed then
  if (turn.accepted or '') == '' then share('HDEL', TEXTS, 'accepted') end
  set('accepted', '')
  set('sealed', '')
end
local at = REST
local function take(n)
  local from = at
  at = at + n
  return from, at - 1
end
local from, to = take(n_fields)
for i = from, to, 2 do set(ARGV[i], ARGV[i + 1]) end
from, to = take(n_facts)
for i = from, to, 2 do fact(attempt, ARGV[i], ARGV[i + 1]) end
for name in string.gmatch(left, '%S+') do share('HDEL', ATTEMPTS, name) end
local answer = {}
from, to = take(n_answer)
for i = from, to do answer[#answer + 1] = ARGV[i] end
count_lines(counters)
if run_ended == '1' then
  fact(attempt, 'finished_at', run_ended_at)
  took('time.agent', run_ended_at - number('since'), '|' .. worked)
  set('since', run_ended_at)
end
if not was_sealed then heard_of_service(worked, service, service_reason, service_wait_ms, began_ms) end
if validated == '1' then took('time.validation', NOW - number('since'), '') end
local emitted_at = run_ended == '1' and run_ended_at or NOW
for i = at, #ARGV, 2 do
  emit(ARGV[i], ARGV[i + 1], emitted_at)
  if ARGV[i] == 'attempt.completed' then emitted_at = NOW end
end

local head = ''
if (turn.stop or '') ~= '' and outcome ~= turn.stop then
  -- Cancelled during the validation: an accepted cancellation is kept.
  outcome = turn.stop
  head = give_up(outcome)
elseif outcome ~= '' then
  count_lines(end_counters)
  head = finish(outcome, answer, ending)
else
  outcome = called_off(state == 'queued')
  local at_once = next ~= '' and delay_ms <= 0 and suspend_ms <= 0
  local hold
  if outcome == '' and at_once then hold = found_hold(state == 'queued') end
  if outcome ~= '' then
    head = give_up(outcome)
  elseif keep == '1' and at_once and not hold then
    set('task', task)
    if state ~= 'queued' then stop_asking() end
    begin(next, state == 'queued' and 'running' or 'validating', token)
    return continued()
  else
    if not hold then stop_asking() end
    set('token', '')
    set('lease_until', 0)
    set('state', state)
    set('next', next)
    set('announced', 1)
    set('not_before', delay_ms > 0 and NOW + delay_ms or 0)
    if suspend_ms > 0 then
      -- Nobody holds the turn and nothing is announced. The deadline moves by the longest possible wait.
      set('suspended_at', NOW)
      set('decide_by', NOW + suspend_ms)
      if number('deadline_at') > 0 then set('deadline_at', number('deadline_at') + suspend_ms) end
      share('ZADD', INBOX, NOW, ID)
      give_place()
      look_again(NOW + suspend_ms)
    elseif hold then
      hold_back(hold)
    else
      -- The caller announces the task at once; after a delay a reaper does.
      look_again(NOW + (delay_ms > 0 and delay_ms or ANNOUNCE_MS))
    end
  end
end
set('last_token', token)
set('last_cmd', nth)
set('last_head', head)
set('last_outcome', outcome)
return { 'done', head, outcome }
