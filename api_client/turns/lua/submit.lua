-- Store a turn, once. The caller made the turn id, so a repeat of a command whose reply was lost finds the turn.
-- KEYS[13] idempotency (string)
-- ARGV[4] request (JSON)  ARGV[5] epoch  ARGV[6] owner  ARGV[7] locale  ARGV[8] deadline in ms from now
-- ARGV[9] double-text policy  ARGV[10] hash of the body, or ''  ARGV[11] life of the idempotency key in ms
-- ARGV[12] session id  ARGV[13] replay of (turn id, or '')  ARGV[14], ARGV[15] budgets: tokens, cost (0: none)
-- ARGV[16], ARGV[17] what is set aside of each for one run  ARGV[18], ARGV[19] model, flow version, as labels
-- ARGV[20] first link, such as turn.run/1  ARGV[21] 1 when the deadline counts from the first claim, else 0
-- KEYS[14] queue (list)  ARGV[22] its message, or '' when the caller announces  ARGV[23], ARGV[24] channel, event
-- answers {'stored', position, '' or 'announced'} | {'known', 0, turn id} | {'repeated', 0, turn id} | {'conflict', 0, turn id}
--         | {'busy', 0, id of the turn in work}

if EXISTS then return { 'known', 0, ID } end
local found = redis.call('TYPE', KEYS[13]).ok
if found ~= 'none' and found ~= 'string' then
  return redis.error_reply('HELIX_WRONG_TYPE ' .. KEYS[13] .. ' is a ' .. found .. ', not a string')
end
local body = ARGV[10]
if body ~= '' then
  local used = redis.call('GET', KEYS[13])
  if used then
    local earlier, hash = string.match(used, '^(%S+) (%S+)$')
    if hash == body then return { 'repeated', 0, earlier } end
    return { 'conflict', 0, earlier or '' }
  end
end
local position = redis.call('LLEN', SESSION)
if ARGV[9] == 'reject' and position > 0 then
  return { 'busy', 0, redis.call('LINDEX', SESSION, 0) }
end

epoch = ARGV[5]
local deadline = ARGV[21] == '1' and 0 or NOW + tonumber(ARGV[8])
redis.call('HSET', TURN, 'v', 1, 'id', ID, 'epoch', epoch, 'state', 'queued', 'next', ARGV[20], 'request', ARGV[4],
  'owner', ARGV[6], 'locale', ARGV[7], 'session_id', ARGV[12], 'attempt', 1, 'delivery', 0, 'strikes', 0,
  'created_at', int(NOW), 'deadline_at', int(deadline), 'token', '', 'announced', 1, 'replay_of', ARGV[13],
  'double_text', ARGV[9], 'token_budget', ARGV[14], 'cost_budget', ARGV[15], 'token_reserve', ARGV[16],
  'cost_reserve', ARGV[17], 'model', ARGV[18], 'flow', ARGV[19], 'deadline_ms', ARGV[8])
redis.call('RPUSH', SESSION, ID)
if body ~= '' then redis.call('SET', KEYS[13], ID .. ' ' .. body, 'PX', ARGV[11]) end
-- The first of its session is announced, here where store and broker are one server; one that waits is looked at when its deadline comes.
turn.deadline_at = deadline
look_again((position == 0 or ARGV[9] == 'interrupt') and NOW + SETTINGS.announce_ms or far())
count({ ['turn.submitted'] = 1 })
emit('turn.queued', '{"position":' .. int(position) .. '}')
if position > 0 or ARGV[22] == '' then return { 'stored', position, '' } end
-- pcall: a queue that is broken must not cost the turn, which is stored by now.
if type(redis.pcall('LPUSH', KEYS[14], ARGV[22])) ~= 'number' then return { 'stored', position, '' } end
redis.pcall('PUBLISH', ARGV[23], ARGV[24])
return { 'stored', position, 'announced' }
