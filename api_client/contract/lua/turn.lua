#!lua
-- What every command that changes a turn has in common. Each command's own text follows this one.
--
-- KEYS[1] turn (hash)      KEYS[2] log (stream)       KEYS[3] attempts (hash)    KEYS[4] session (list)
-- KEYS[5] due (zset)       KEYS[6] finished (zset)    KEYS[7] dead (zset)
-- KEYS[8] totals (hash)    KEYS[9] minute (hash)      KEYS[10] hour (hash)       KEYS[11] day (hash)
-- KEYS[12] inbox (zset)
-- ARGV[1] bell (channel)   ARGV[2] turn id
-- ARGV[3] settings (JSON): announce_ms, retention_ms, resume_ms, bucket_ttl, bounds_ms, errors
-- ARGV[4...] the command's own
--
-- Lua does not roll back: a command reads and checks everything before its first write. The type checks below make a
-- wrong-typed key fail here, before anything is written.

local TURN, LOG, ATTEMPTS, SESSION, DUE, FINISHED, DEAD, INBOX =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[12]
local BELL, ID = ARGV[1], ARGV[2]

local kinds = { 'hash', 'stream', 'hash', 'list', 'zset', 'zset', 'zset', 'hash', 'hash', 'hash', 'hash', 'zset' }
for i, kind in ipairs(kinds) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= kind then
    return redis.error_reply('HELIX_WRONG_TYPE ' .. KEYS[i] .. ' is a ' .. found .. ', not a ' .. kind)
  end
end

local SETTINGS = cjson.decode(ARGV[3])
local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- The record as it was when the command began; numbers as numbers.
local turn = {}
local flat = redis.call('HGETALL', TURN)
for i = 1, #flat, 2 do turn[flat[i]] = flat[i + 1] end
local EXISTS = #flat > 0
local function number(name) return tonumber(turn[name] or '0') or 0 end

local seq = number('seq')
local epoch = turn.epoch or ''

local function int(value) return string.format('%.0f', value) end

-- Write one event: log first, bell second. data is JSON text.
local function emit(kind, data)
  seq = seq + 1
  local wire = '{"seq":' .. int(seq) .. ',"epoch":"' .. epoch .. '","at":' .. int(NOW) ..
    ',"kind":"' .. kind .. '","data":' .. data .. '}'
  redis.call('XADD', LOG, int(seq) .. '-0', 'e', wire)
  redis.call('HSET', TURN, 'seq', int(seq))
  redis.call('PUBLISH', BELL, wire)
end

-- Add to the counters (contract/counters.py): since ever, and this minute, hour and day.
local function count(counters)
  local new = { false, false, false }
  for name, by in pairs(counters) do
    redis.call('HINCRBY', KEYS[8], name, by)
    -- The first counter of a bucket is new in it: only then its life needs to be set.
    for i = 1, 3 do new[i] = redis.call('HINCRBY', KEYS[8 + i], name, by) == by or new[i] end
  end
  for i, seconds in ipairs(SETTINGS.bucket_ttl) do
    if new[i] then redis.call('EXPIRE', KEYS[8 + i], seconds) end
  end
end

-- Note in counters that something took ms milliseconds: their sum, and one more in the right bucket.
local function took(counters, name, ms, labels)
  if ms < 0 then ms = 0 end
  local bucket = 'inf'
  for _, bound in ipairs(SETTINGS.bounds_ms) do
    if ms <= bound then
      bucket = int(bound)
      break
    end
  end
  labels = labels or ''
  counters[name .. '.ms' .. labels] = ms
  counters[name .. '.le' .. labels .. '|' .. bucket] = 1
end

-- The turn's model, as a label.
local MODEL = turn.model or 'other'

-- When somebody must look at the turn again: never later than at its deadline, as long as that is still to come.
local function look_again(at)
  local deadline = number('deadline_at')
  if NOW < deadline and deadline < at then at = deadline end
  redis.call('ZADD', DUE, int(at), ID)
end

-- When a turn that waits for its session must be looked at: at its deadline, or, without one, now and then.
local function far()
  local deadline = number('deadline_at')
  return deadline > 0 and deadline or NOW + 64 * SETTINGS.announce_ms
end

local function is_head() return redis.call('LINDEX', SESSION, 0) == ID end

-- End the turn: the one place where an outcome is written. Answers the id of the session's next turn, or ''.
-- answer: response, step, step_source, error (JSON text), markers (JSON text; none: '[]'), all strings
-- counters: what this change counts besides
local function finish(outcome, answer, counters)
  local success = string.sub(outcome, 1, 6) == 'passed'
  local fault, markers = answer.error, answer.markers or '[]'
  redis.call('HSET', TURN, 'state', 'finished', 'outcome', outcome, 'finished_at', int(NOW), 'next', '', 'token', '',
    'lease_until', 0, 'response', answer.response, 'step', answer.step, 'step_source', answer.step_source,
    'error', fault, 'markers', markers)
  local led = is_head()
  redis.call('LREM', SESSION, 0, ID)
  redis.call('ZREM', DUE, ID)
  redis.call('ZREM', INBOX, ID)
  -- One that only waited leaves the session's head, which may be at work, as it is.
  local head = led and redis.call('LINDEX', SESSION, 0) or ''
  -- The caller announces the session's next turn; should it die first, a reaper finds it here, or at its deadline.
  if head ~= '' then redis.call('ZADD', DUE, 'LT', int(NOW + SETTINGS.announce_ms), head) end
  redis.call('ZADD', FINISHED, int(NOW), ID)
  redis.call('ZREMRANGEBYSCORE', FINISHED, '-inf', int(NOW - SETTINGS.retention_ms))
  if outcome == 'dead' then redis.call('ZADD', DEAD, int(NOW), ID) end
  local step = answer.step ~= '' and answer.step or 'none'
  counters[table.concat({ 'turn.finished', outcome, MODEL, turn.flow or 'none', step,
    number('retries') > 0 and '1' or '0' }, '|')] = 1
  took(counters, 'time.turn', NOW - number('created_at'))
  count(counters)
  emit('turn.finished', '{"outcome":"' .. outcome .. '","success":' .. tostring(success) ..
    ',"attempts":' .. int(number('attempt')) .. ',"deliveries":' .. int(number('delivery')) ..
    ',"response":' .. cjson.encode(answer.response) .. ',"step":' .. cjson.encode(answer.step) ..
    ',"step_source":' .. cjson.encode(answer.step_source) .. ',"markers":' .. markers .. ',"error":' .. fault .. '}')
  -- A dead letter stays until somebody drops it.
  if outcome ~= 'dead' then
    for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], int(SETTINGS.retention_ms)) end
  end
  return head
end

-- The budget the turn has used up: '' | tokens | cost. Asked only before another agent run.
local function spent()
  if number('token_budget') > 0 and number('tokens_used') >= number('token_budget') then return 'tokens' end
  if number('cost_budget') > 0 and number('cost_used') >= number('cost_budget') then return 'cost' end
  return ''
end

-- End a turn that nobody judged: cancelled, expired or dead, with the message for the user in the turn's language.
local function give_up(outcome, counters)
  local texts = SETTINGS.errors[outcome]
  local message = texts[turn.locale] or texts.en
  local reason = outcome
  if outcome == 'expired' then
    reason = spent()
    if reason == '' then reason = 'deadline' end
  end
  return finish(outcome, { response = '', step = '', step_source = '',
    error = cjson.encode({ code = outcome, message = message, reason = reason }) }, counters or {})
end

-- The outcome a turn must end with now: '' | cancelled | expired. will_run: the agent is to run next.
-- An accepted answer is on its way to the session's folder: it comes too late for both.
local function called_off(will_run)
  if (turn.accepted or '') ~= '' then return '' end
  if (turn.stop or '') ~= '' then return turn.stop end
  if number('deadline_at') > 0 and number('deadline_at') <= NOW then return 'expired' end
  if will_run and spent() ~= '' then return 'expired' end
  return ''
end

-- Go on with a parked turn as somebody decided, or as its time-out does. A worker carries it out with the next link.
-- Its clock stood still meanwhile: the deadline was put off by the whole time-out, and comes back by what is left of
-- it. An accepted answer must not expire on its way, so some time is always left.
local function decide(kind, by, note, text, name)
  local deadline = number('deadline_at')
  if deadline > 0 then
    deadline = math.max(deadline + NOW - number('decide_by'), NOW + SETTINGS.resume_ms)
  end
  turn.deadline_at, turn.next = int(deadline), 'turn.resume/' .. int(number('attempt'))
  redis.call('HSET', TURN, 'state', 'ran', 'next', turn.next, 'deadline_at', turn.deadline_at, 'announced', 1,
    'not_before', 0, 'decide_by', 0, 'decision',
    cjson.encode({ kind = kind, by = by, ['for'] = name, note = note, text = text, at = NOW / 1000 }))
  redis.call('ZREM', INBOX, ID)
  look_again(NOW + SETTINGS.announce_ms)
  count({ ['turn.decided|' .. kind] = 1 })
  emit('turn.decided', '{"attempt":' .. int(number('attempt')) .. ',"kind":"' .. kind .. '","by":' ..
    cjson.encode(by) .. ',"for":' .. cjson.encode(name) .. ',"note":' .. cjson.encode(note) .. '}')
end

-- Begin a link of the chain, such as turn.run/1, for the holder of this token: the one place where work starts.
-- state: running | validating  worker: JSON string
local function begin(link, state, token, lease_ms, worker)
  local attempt = string.match(link, '/(%d+)$')
  redis.call('HSET', TURN, 'state', state, 'next', link, 'token', token, 'lease_until', int(NOW + lease_ms),
    'attempt', attempt, 'not_before', 0, 'announced', 1)
  look_again(NOW + lease_ms)
  if state ~= 'running' then return end
  local delivery = redis.call('HINCRBY', TURN, 'delivery', 1)
  local counters = { ['delivery.started'] = 1 }
  if delivery == 1 then took(counters, 'time.wait', NOW - number('created_at')) end
  if number('alive_at') > 0 then took(counters, 'time.recovery', NOW - number('alive_at')) end
  redis.call('HSET', TURN, 'since', int(NOW), 'alive_at', 0)
  redis.call('HSETNX', ATTEMPTS, attempt .. ':started_at', int(NOW))
  redis.call('HSET', ATTEMPTS, attempt .. ':worker', cjson.decode('[' .. worker .. ']')[1])
  redis.call('HINCRBY', ATTEMPTS, attempt .. ':deliveries', 1)
  count(counters)
  local allowed = number('allowed')
  if allowed == 0 then allowed = cjson.decode(turn.request).max_attempts or 0 end
  emit('attempt.started', '{"attempt":' .. attempt .. ',"delivery":' .. int(delivery) ..
    ',"max_attempts":' .. int(allowed) .. ',"worker":' .. worker .. '}')
end

-- What a claim answers: the record as it is now.
local function claimed()
  local reply = { 'claimed', int(NOW) }
  for _, part in ipairs(redis.call('HGETALL', TURN)) do reply[#reply + 1] = part end
  return reply
end
