-- Store a turn, once. The caller chose the turn's id, so a repeat after a lost reply finds the turn.
-- KEYS[21] idempotency (string)
-- args: request epoch owner locale deadline_ms# double_text body key_ms session_id token_limit# cost_limit#
-- args: token_reserve# cost_reserve# model_label labels first_link from_claim max_attempts key message channel event
-- args: priority weight# most# head ...
-- request: JSON  body: the hash of the request, or ''  key_ms: life of the idempotency key
-- limits: 0 for none  reserves: the amount set aside for one run  model_label: the model as a label
-- first_link: such as turn.run/1  from_claim: 1 if the deadline counts from the first claim, else 0
-- reads: nothing
-- labels: further fields of the record (JSON), set by admissions
-- key: the caller's API key, as a label
-- priority, weight, most: see fair_queue.lua  message: for the queue, or '' if the caller announces the turn
-- channel, event: Celery's task event of the message, or ''
-- head, ...: the messages before the request's own, or '' and none: see history.lua
-- answers {'stored', position, ''} | {'stored', position, 'held'} | {'stored', position, 'announced'}
--         | {'stored', position, 'unheard'}: announced, and nobody got the event | {'known', 0, turn id}
--         | {'repeated', 0, turn id} | {'conflict', 0, turn id}
--         | {'closed', until in ms, reason}: no new turns are stored
--         | {'busy', 0, id of the turn in work}

looked_at[4], looked_at[5] = { 'turn', TURN }, { 'session', SESSION }
if look().turn then return { 'known', 0, ID } end
if body ~= '' then
  local used = redis.call('GET', KEYS[21])
  if used then
    local earlier, hash = string.match(used, '^(%S+) (%S+)$')
    if hash == body then return { 'repeated', 0, earlier } end
    return { 'conflict', 0, earlier or '' }
  end
end
local closed = intake_closed(owner, key, model_label)
if closed then return closed end
local position = look().session and redis.call('LLEN', SESSION) or 0
if double_text == 'reject' and position > 0 then
  return { 'busy', 0, redis.call('LINDEX', SESSION, 0) }
end

local place = position == 0 and message ~= '' and place_key(priority, owner, NOW, ID) or ''
for name, value in pairs({ v = RECORD_FORM, id = ID, epoch = epoch, state = 'queued', next = first_link, owner = owner,
  locale = locale, session_id = session_id, attempt = 1, created_at = NOW,
  deadline_at = from_claim == '1' and 0 or NOW + deadline_ms, deadline_ms = deadline_ms, announced = 1,
  double_text = double_text, token_limit = token_limit, cost_limit = cost_limit,
  token_reserve = token_reserve, cost_reserve = cost_reserve, model = model_label,
  max_attempts = max_attempts, key = key, most = most, behind = math.min(position, 1), place = place,
  priority = priority ~= 'interactive' and priority or '',
  weight = weight ~= 1 and weight or 0 }) do
  if value ~= '' and value ~= 0 then set(name, value) end -- a missing value is '' or 0
end
for name, value in pairs(cjson.decode(labels)) do set(name, value) end
text('request', request)
if head ~= '' then keep_history(head, REST) end
share('RPUSH', SESSION, ID)
if body ~= '' then share('SET', KEYS[21], ID .. ' ' .. body, 'PX', key_ms) end
-- The first turn of a session is announced, here if store and broker are one server; a waiting turn is due at its
-- deadline.
local lines_up = position == 0 and message ~= '' and (most > 0 or not is_empty())
local soon = (position == 0 or double_text == 'interrupt') and NOW + ANNOUNCE_MS
look_again(lines_up and NOW + 64 * ANNOUNCE_MS or soon or far())
after(function() redis.call('RPUSH', PENDING, NOW .. '\nturn.submitted\t1') end) -- a failing counter stops no turn
emit('turn.queued', '{"position":' .. position .. '}')
if position == 0 and held_back(true) then return { 'stored', position, 'held' } end
if position > 0 or message == '' then return { 'stored', position, '' } end
flush()
local of = { place = place, owner = owner, priority = priority, weight = weight, most = most, link = first_link,
  session = session_id, deadline_at = number('deadline_at'), is_due = lines_up }
-- pcall: the turn is stored, so a broken queue must not fail the command.
if not pcall(start, ID, of, message) then
  redis.call('ZADD', DUE, before(of.deadline_at, soon), ID)
  return { 'stored', position, '' }
end
local is_unheard = event ~= '' and redis.pcall('PUBLISH', channel, event) == 0
return { 'stored', position, is_unheard and 'unheard' or 'announced' }
