-- Claim a turn for one task of its chain. The worker chose the token, so a repeat after a lost reply finds its claim.
-- KEYS[21] affinity (string): the worker process that can continue the session best
-- args: link token worker alone task models lack patience_ms#
-- models: labels of the models of this worker, each between line ends; '' for all
-- lack: why this worker cannot carry out the task, or ''
-- link: the task, such as turn.run/1  alone: 1 if this process works on nothing else, else 0
-- task: the id of the Celery task, or ''
-- patience_ms: how long a run is left to the worker of the affinity; 0 for no time
-- reads: *
-- answers {'claimed', now, {field, text ...}, {changed field, text or number ...}} | {'refused', why}
--         | {'refused', 'kept', worker}

looked_at[4] = { 'affinity', KEYS[21] }
-- Whatever the result, the message has left the queue, so another message may follow.
if QUEUED == 0 then share('ZREM', LET_GO, ID) end
local begins = false -- whether the turn starts its first run now
after(function()
  -- It waits again: a reaper took this message for lost.
  if begins and (turn.lined or '') ~= '' then leave(turn.place or '') end
  fill_up()
end)
if not turn.state then return { 'refused', 'missing' } end
if turn.token == token then return claimed() end
if turn.state == 'finished' then return { 'refused', 'finished' } end
-- A token is valid for one claim: a late command of a lost or committed holder claims nothing.
if string.find(turn.tokens or '', token, 1, true) then return { 'refused', 'late' } end
if (turn.token or '') ~= '' then return { 'refused', 'held' } end
if turn.next ~= link then return { 'refused', 'not_next' } end
if (turn.behind or '') ~= '' and not is_head() then return { 'refused', 'waiting' } end -- the first stays the first
if held_back(turn.state == 'queued') then return { 'refused', 'held_back' } end
if called_off(turn.state == 'queued') ~= '' then
  look_again(NOW)
  return { 'refused', 'called_off' }
end
if number('not_before') > NOW then return { 'refused', 'early' } end
-- A message taken for lost has no slot: the turn waits in the fair queue again.
local most = number('delivery') == 0 and number('most') or 0
if is_full(plain(turn.owner or ''), most) and entry_at(turn.place or '') then
  return { 'refused', 'waiting' }
end
-- This worker lacks the model or something else, which is recorded; the turn is left to other workers.
if turn.state == 'queued' and models ~= '' and not string.find(models, '\n' .. works() .. '\n', 1, true) then
  return { 'refused', 'elsewhere' }
end
if number('v') > RECORD_FORM then
  lack = 'it is older than the turn, whose record has form ' .. turn.v .. '; it knows ' .. RECORD_FORM
end
if lack ~= '' then
  local known = #(turn.lacks or '') < 4000 and cjson.decode((turn.lacks or '') ~= '' and turn.lacks or '{}') or {}
  known[(string.gsub(worker, '%-%d+@', '@', 1))] = lack
  set('lacks', cjson.encode(known))
  return { 'refused', 'elsewhere' }
end
-- Workers that lost the turn leave it to others for a while (contract/turn.py).
for word in string.gmatch(turn.avoid or '', '%S+') do
  if NOW < number('not_before') + ELSEWHERE_MS and string.find(worker .. '$', word, 1, true) then
    look_again(NOW + 500)
    return { 'refused', 'elsewhere' }
  end
end
if (turn.lacks or '') ~= '' then set('lacks', '') end
-- The delivery before the last strike runs in a separate process, so that a crash can be blamed on the turn.
if alone ~= '1' and number('strikes') >= STRIKES - 1 then return { 'refused', 'alone' } end
-- A run is briefly left to the worker that can continue best. A run on another worker ends the affinity.
local affine = patience_ms > 0 and turn.state == 'queued' and look().affinity and redis.call('GET', KEYS[21])
if affine and affine ~= worker then
  local waits = alone ~= '1' and number('strikes') == 0 and (turn.avoid or '') == ''
  if waits and number('kept_until') == 0 then
    set('kept_until', NOW + patience_ms)
    look_again(NOW + patience_ms + ANNOUNCE_MS) -- the turn is announced and only left to wait
  end
  if waits and number('kept_until') > NOW then return { 'refused', 'kept', affine } end
  share('DEL', KEYS[21])
end
if number('kept_until') > 0 then set('kept_until', 0) end

-- The kind of work may have waited for other turns, so its time starts now.
if number('deadline_at') == 0 and number('deadline_ms') > 0 then set('deadline_at', NOW + number('deadline_ms')) end
begins = number('delivery') == 0
set('tokens', (turn.tokens or '') .. token .. ' ')
set('cmd', 0)
set('alone', alone)
set('task', task)
set('worker', worker)
begin(link, turn.state == 'queued' and 'running' or 'validating', token)
return claimed()
