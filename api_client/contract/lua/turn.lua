-- What every command that changes a turn has in common. commands.py builds a command's whole text: what it needs of the
-- settings (as constants), of this file and of pauses.lua, its arguments by name, and the command itself, which decides
-- and answers. So all here is declared at the beginning of a line, and a field of the record is read as turn.NAME or
-- number('NAME'), for only those are read from the store.
-- All writes are kept until it has answered, so a key of a wrong type fails a command before the record changes.
--
-- KEYS 1   TURN      hash    the record: see below
--      2   LOG       stream  the events, of each command an entry, a line per event
--      3   ATTEMPTS  hash    the attempts' facts: 2:text, 2:issues, ...; 2:text~TOKEN is a very long one, which its
--                            writer stored before the command that names it (2:text_in)
--      4   TEXTS     hash    request and accepted, where they are long: read only when they are needed
--      5   SESSION   list    ids of the session's turns that have not ended, the one in work first
--      6   DUE       zset    when somebody must look at a turn
--      7   FINISHED  zset    turns that ended, by the time they did
--      8   DEAD      zset    dead letters, by the time they died
--      9   INBOX     zset    parked turns, by the time they were parked
--      10  PENDING   list    counters that no reaper has folded yet: see counters.py
--      11  PAUSES    hash    see pauses.lua
--      12  HELD      zset    turns that are held back: see pauses.lua
-- ARGV     ID, then what the command's header declares: "args: token nth# ..." ("#": a number; "...": the rest)
-- SETTINGS ANNOUNCE_MS, RETENTION_MS, RESUME_MS, LEASE_MS, STRIKES, BOUNDS_MS, GIVEN_UP, SHORT_BYTES
--
-- Fields of TURN                       (times in ms; a missing field is '' or 0)
--   state next outcome                 where the turn is: see contract/turn.py
--   token lease_until worker alone     who has it, until when, and whether that process does nothing else
--   task lost                          the link's Celery task; one whose worker died, and that worker
--   tokens                             every token it was claimed with
--   cmd                                number of the holder's last command
--   last_token last_cmd last_head last_outcome     the last commit and its answer
--   epoch seq                          of the log: nonce of this record, number of the last event
--   attempt delivery strikes retries announced not_before alive_at since
--   created_at finished_at deadline_at deadline_ms parked_at decide_by decide_default decided decision
--   stop sealed                        cancelled; since when accepted and published (too late to be cancelled)
--   owner key session_id locale model stage_model flow double_text max_attempts allowed replay_of
--   token_budget tokens_used token_reserve cost_budget cost_used cost_reserve policy
--   held_back held_since probes        see pauses.lua
--   still_ms                           how long it waited for persons and pauses
--   request accepted response          texts of up to SHORT_BYTES
--   apart                              1: TEXTS has longer ones; before, request_bytes said that it has all
--   response_in                        the fact of ATTEMPTS that a longer response is, such as 2:text
-- A record of version 1 has request, response and accepted here whatever their length, and no max_attempts, sealed.

local TURN, LOG, ATTEMPTS, TEXTS, SESSION = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DUE, FINISHED, DEAD, INBOX, PENDING = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local PAUSES, HELD = KEYS[11], KEYS[12]
local ID, BELL = ARGV[1], TURN .. ':bell'

local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function int(value) return string.format('%.0f', value) end

-- The record as it was when the command began; set changes it too.
local turn = {}
local seq = 0
local function read(names)
  for i, value in ipairs(redis.call('HMGET', TURN, unpack(names))) do turn[names[i]] = value or nil end
  seq = tonumber(turn.seq or '0') or 0
end
-- All of it, for a command that answers it.
local function read_all()
  local found = redis.call('HGETALL', TURN)
  for i = 1, #found, 2 do turn[found[i]] = found[i + 1] end
  seq = tonumber(turn.seq or '0') or 0
end
local function number(name) return tonumber(turn[name] or '0') or 0 end

-- What is written when the command has answered.
local fields, facts, texts, shared, events, counted = {}, {}, {}, {}, {}, {}

local function put(pairs_of, name, value)
  if type(value) == 'number' then value = int(value) end
  pairs_of[#pairs_of + 1] = name
  pairs_of[#pairs_of + 1] = value
  return value
end
local function set(name, value) turn[name] = put(fields, name, value) end
local function fact(attempt, name, value) put(facts, attempt .. ':' .. name, value) end
-- A text of the turn: a long one apart, so that what reads the record does not read it.
local function text(name, value)
  if #value <= SHORT_BYTES then return set(name, value) end
  put(texts, name, value)
  if not turn.apart then set('apart', 1) end
end
-- A change of another key than the turn's own.
local function share(...) shared[#shared + 1] = { ... } end

-- One event. data is JSON text, so it has no line end: the log's entries and the bell carry one event a line.
-- at: when it was, if not now
local function emit(kind, data, at)
  seq = seq + 1
  events[#events + 1] = '{"seq":' .. int(seq) .. ',"epoch":"' .. (turn.epoch or '') .. '","at":' .. int(at or NOW) ..
    ',"kind":"' .. kind .. '","data":' .. data .. '}'
end

-- Add to the counters, under the time of the command. lines: name, tab, number; one a line.
local function count_lines(lines)
  if lines == '' then return end
  if #counted == 0 then counted[1] = int(NOW) end
  counted[#counted + 1] = lines
end
local function count(name, by) count_lines(name .. '\t' .. int(by)) end

-- Note that something took ms milliseconds: their sum, and one more in the right bucket.
local function took(name, ms, labels)
  if ms < 0 then ms = 0 end
  local bucket = 'inf'
  for _, bound in ipairs(BOUNDS_MS) do
    if ms <= bound then
      bucket = int(bound)
      break
    end
  end
  labels = labels or ''
  count(name .. '.ms' .. labels, ms)
  count(name .. '.le' .. labels .. '|' .. bucket, 1)
end

-- Write it all: keys that others share first, so that a wrong type there leaves the turn as it was.
local function flush()
  if #counted > 0 then redis.call('RPUSH', PENDING, table.concat(counted, '\n')) end
  for _, command in ipairs(shared) do redis.call(unpack(command)) end
  if #facts > 0 then redis.call('HSET', ATTEMPTS, unpack(facts)) end
  if #texts > 0 then redis.call('HSET', TEXTS, unpack(texts)) end
  local lines = table.concat(events, '\n')
  if #events > 0 then
    -- One entry for all events of a command, under the number of the last.
    redis.call('XADD', LOG, int(seq) .. '-0', 'e', lines)
    set('seq', seq)
  end
  if #fields > 0 then redis.call('HSET', TURN, unpack(fields)) end
  if #events > 0 then redis.call('PUBLISH', BELL, lines) end
  if turn.outcome and turn.outcome ~= '' and turn.outcome ~= 'dead' then
    -- A dead letter stays until somebody drops it.
    local keys = #events == 0 and 0 or (turn.apart or turn.request_bytes) and 4 or 3
    for i = 1, keys do redis.call('PEXPIRE', KEYS[i], RETENTION_MS) end
  end
  fields, facts, texts, shared, events, counted = {}, {}, {}, {}, {}, {}
end

-- The turn's model, as a label.
local function model() return turn.model or 'other' end

-- When somebody must look at the turn again: never later than at its deadline, as long as that is still to come.
local function look_again(at)
  local deadline = number('deadline_at')
  if NOW < deadline and deadline < at then at = deadline end
  share('ZADD', DUE, int(at), ID)
end

-- When a turn that waits for its session must be looked at: at its deadline, or, without one, now and then.
local function far()
  local deadline = number('deadline_at')
  return deadline > 0 and deadline or NOW + 64 * ANNOUNCE_MS
end

local function is_head() return redis.call('LINDEX', SESSION, 0) == ID end

-- Too late to be cancelled: an accepted answer is on its way to the session's folder.
local function is_sealed() return (turn.sealed or '') ~= '' or (turn.accepted or '') ~= '' end

local end_pause -- see pauses.lua

-- End the turn: the one place where an outcome is written. Answers the id of the session's next turn, or ''.
-- answer: {name, text, ...} for the record  ending: the same as JSON, for the event
local function finish(outcome, answer, ending)
  local line = redis.call('LRANGE', SESSION, 0, 1)
  -- One that only waited leaves the session's head, which may be at work, as it is.
  local head = line[1] == ID and line[2] or ''
  share('ZADD', FINISHED, int(NOW), ID)
  if outcome == 'dead' then share('ZADD', DEAD, int(NOW), ID) end
  share('LREM', SESSION, 0, ID)
  share('ZREM', DUE, ID)
  if turn.state == 'parked' then
    share('ZREM', INBOX, ID)
    turn.still_ms = number('still_ms') + NOW - number('parked_at')
  end
  end_pause()
  -- The caller announces the session's next turn; should it die first, a reaper finds it here, or at its deadline.
  if head ~= '' then share('ZADD', DUE, 'LT', int(NOW + ANNOUNCE_MS), head) end
  set('state', 'finished')
  set('outcome', outcome)
  set('finished_at', NOW)
  set('next', '')
  set('token', '')
  set('lease_until', 0)
  for i = 1, #answer, 2 do set(answer[i], answer[i + 1]) end
  local step = (turn.step or '') ~= '' and turn.step or 'none'
  count(table.concat({ 'turn.finished', outcome, model(), turn.flow or 'none', step,
    number('retries') > 0 and '1' or '0' }, '|'), 1)
  if (turn.policy or '') ~= '' then
    count(table.concat({ 'policy.finished', turn.policy, outcome, number('retries') > 0 and '1' or '0' }, '|'), 1)
  end
  took('time.turn', NOW - number('created_at') - number('still_ms'))
  emit('turn.finished', '{"outcome":"' .. outcome .. '","success":' ..
    tostring(string.sub(outcome, 1, 6) == 'passed') ..
    ',"attempts":' .. int(number('attempt')) .. ',"deliveries":' .. int(number('delivery')) .. ',' .. ending .. '}')
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
  local messages = GIVEN_UP[outcome]
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

-- Go on with a parked turn as somebody decided, or as its time-out does. A worker carries it out with the next link.
-- Its clock stood still meanwhile: the deadline was put off by the whole time-out, and comes back by what is left of
-- it. An accepted answer must not expire on its way, so some time is always left.
local function decide(kind, by, note, said, name)
  set('still_ms', number('still_ms') + NOW - number('parked_at'))
  local deadline = number('deadline_at')
  if deadline > 0 then
    set('deadline_at', math.max(deadline + NOW - number('decide_by'), NOW + RESUME_MS))
  end
  set('state', 'ran')
  set('next', 'turn.resume/' .. int(number('attempt')))
  set('announced', 1)
  set('not_before', 0)
  set('decide_by', 0)
  set('decision', cjson.encode({ kind = kind, by = by, ['for'] = name, note = note, text = said, at = NOW / 1000 }))
  share('ZREM', INBOX, ID)
  look_again(NOW + ANNOUNCE_MS)
  count('turn.decided|' .. kind, 1)
  emit('turn.decided', '{"attempt":' .. int(number('attempt')) .. ',"kind":"' .. kind .. '","by":' ..
    cjson.encode(by) .. ',"for":' .. cjson.encode(name) .. ',"note":' .. cjson.encode(note) .. '}')
end

-- How many attempts the turn has: as requested, or as an escalation or a person allowed.
local function most_attempts()
  if number('allowed') > 0 then return number('allowed') end
  if turn.max_attempts then return number('max_attempts') end
  return cjson.decode(redis.call('HGET', TURN, 'request')).max_attempts or 0 -- a record of version 1
end

-- Begin a link of the chain, such as turn.run/1, for the holder of this token: the one place where work starts.
-- state: running | validating  worker_name: JSON string
local function begin(link, state, token, worker_name)
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
  set('delivery', number('delivery') + 1)
  count('delivery.started', 1)
  if number('delivery') == 1 then took('time.wait', NOW - number('created_at')) end
  if number('alive_at') > 0 then
    took('time.recovery', NOW - number('alive_at'))
    set('alive_at', 0)
  end
  set('since', NOW)
  local before = again and redis.call('HMGET', ATTEMPTS, attempt .. ':deliveries', attempt .. ':started_at') or {}
  fact(attempt, 'deliveries', (tonumber(before[1] or '0') or 0) + 1)
  if not before[2] then fact(attempt, 'started_at', NOW) end
  fact(attempt, 'worker', turn.worker)
  emit('attempt.started', '{"attempt":' .. attempt .. ',"delivery":' .. int(number('delivery')) ..
    ',"max_attempts":' .. int(most_attempts()) .. ',"worker":' .. worker_name .. '}')
end

-- What a claim answers: the record as it is now.
local function claimed()
  flush()
  local reply = { 'claimed', int(NOW) }
  for name, value in pairs(turn) do
    reply[#reply + 1] = name
    reply[#reply + 1] = value
  end
  return reply
end
-- What a holder is answered that goes on: the fields that it does not know yet.
local function went_on()
  local changed = fields
  flush()
  return { 'went_on', int(NOW), unpack(changed) }
end
