-- The record of a turn: how a command reads it, and what it writes after answering. commands.py assembles the text of a
-- command: settings as constants, the needed parts of this file, then inside one function the needed parts of the other
-- common files, the named arguments, and the command itself. Declarations therefore start at the beginning of a line,
-- and a field of the record is read as turn.NAME or number('NAME'), because only these fields are read from the store.
-- All writes are kept until the command has answered, so a key of a wrong type fails the command before the record
-- changes.
--
-- KEYS 1   TURN      hash    the record: see below
--      2   LOG       stream  the events: an entry per command, a line per event
--      3   ATTEMPTS  hash    the attempts' facts: 2:text, 2:issues, ...; 2:text~TOKEN is a very long text, stored
--                            by its writer before the command that refers to it (2:text_in)
--      4   TEXTS     hash    request and accepted, if they are long: read only when needed
--      5   SESSION   list    ids of the session's unfinished turns, the current turn first
--      6   DUE       zset    when a turn must be handled
--      7   FINISHED  zset    finished turns, by the time of their end
--      8   DEAD      zset    dead letters, by the time of their death
--      9   INBOX     zset    suspended turns, by the time of their suspension
--      10  PENDING   list    counters that no reaper has folded yet: see counters.py
--      11  PAUSES    hash    what keeps turns from starting
--      12  HELD      zset    turns held back
--      13  HISTORY   hash    earlier messages of the session's turns: see history.lua
--      14 to 20              see fair_queue.lua
-- ARGV     ID, then what the command's header declares: "args: token nth# ..." ("#": a number; "...": the rest)
-- SETTINGS ANNOUNCE_MS, RETENTION_MS, RESUME_MS, LEASE_MS, ELSEWHERE_MS, STRIKES, BOUNDS_MS, GIVEN_UP, SHORT_BYTES,
--          COUNTED_LABELS, LABEL_COUNTERS
--
-- Fields of TURN                       (times in ms; a missing field is '' or 0)
--   state next outcome                 where the turn is: see contract/turn.py
--   token lease_until worker alone     the holder, the end of its lease, and whether it does nothing else
--   task lost                          the Celery task; a task whose worker died, and that worker
--   tokens                             all tokens of past claims
--   cmd                                number of the holder's last command
--   last_token last_cmd last_head last_outcome     the last commit and its answer
--   epoch seq                          of the log: nonce of this record, number of the last event
--   behind lined                       1: not the first of its session when it came; lined up by enqueue.lua
--   attempt delivery strikes retries avoid announced not_before alive_at since
--   created_at finished_at deadline_at deadline_ms suspended_at decide_by decided decision interruption answer_used
--   kept_until                         how long the next run is left to the worker that keeps the session's agent
--   stop sealed                        cancelled; when accepted and published (too late to cancel)
--   owner key session_id locale model stage_model double_text max_attempts allowed
--   the labels of the request, see submit.lua and contract/turn_labels.py
--   token_limit tokens_used token_reserve cost_limit cost_used cost_reserve
--   held_back held_since probes asks   what keeps it from starting
--   priority weight most place         see fair_queue.lua; '': interactive, 1, no limit, never announced
--   lacks                              workers that cannot carry out the next task -> why (JSON)
--   still_ms                           time spent suspended or held back
--   request accepted response          texts of up to SHORT_BYTES
--   apart                              1: TEXTS has longer texts; earlier, request_bytes said that it has all
--   history                            the digest of the messages before the request's own, if these are long
--   response_in                        the fact of ATTEMPTS with a longer response, such as 2:text
-- A record of version 1 has request, response and accepted here at any length, and no max_attempts, sealed.

local TURN, LOG, ATTEMPTS, TEXTS, SESSION = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DUE, FINISHED, DEAD, INBOX, PENDING = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local PAUSES, HELD, HISTORY = KEYS[11], KEYS[12], KEYS[13]
local ID = ARGV[1]

local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- The record at the start of the command; a text per field, or false or nil if missing. `set` changes this table too.
local turn
-- The same as the store returned it, in commands that read all of it ("reads: *").
local record
local seq
local function number(name) return tonumber(turn[name] or '0') or 0 end

-- The writes after the answer. Numbers are whole, because the server writes them as such.
local fields, facts, texts, shared, events, counted = {}, {}, {}, {}, {}, {}
local is_written = false
-- Actions after all writes, whose failure does not undo the writes: see fair_queue.lua.
local afterwards = {}
local function after(act) afterwards[#afterwards + 1] = act end

local function set(name, value)
  turn[name] = value
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
local function fact(attempt, name, value)
  facts[#facts + 1] = attempt .. ':' .. name
  facts[#facts + 1] = value
end
-- Set a text of the turn; a long text is stored separately, so that reading the record stays cheap.
local function text(name, value)
  if #value <= SHORT_BYTES then return set(name, value) end
  texts[#texts + 1] = name
  texts[#texts + 1] = value
  if not turn.apart then set('apart', 1) end
end
-- Change a key other than the turn's own.
local function share(...) shared[#shared + 1] = { ... } end

-- Add an event. data is JSON without line ends: log entries and the channel carry one event per line.
-- at: its time, if not now
local function emit(kind, data, at)
  seq = seq + 1
  events[#events + 1] = '{"seq":' .. seq .. ',"epoch":"' .. (turn.epoch or '') .. '","at":' .. (at or NOW) ..
    ',"kind":"' .. kind .. '","data":' .. data .. '}'
end

-- Add to the counters at the time of the command. lines: name, tab, number; one per line.
local function count_lines(lines)
  if lines == '' then return end
  if #counted == 0 then counted[1] = NOW end
  counted[#counted + 1] = lines
end
local function count(name) count_lines(name .. '\t1') end

-- Record a duration of ms milliseconds: its sum, and one more in its bucket. labels: '' or '|LABEL'
local function took(name, ms, labels)
  ms = math.max(0, math.floor(ms)) -- folding reads whole numbers
  local bucket = 'inf'
  for _, bound in ipairs(BOUNDS_MS()) do
    if ms <= bound then
      bucket = bound
      break
    end
  end
  count_lines(name .. '.ms' .. labels .. '\t' .. ms .. '\n' .. name .. '.le' .. labels .. '|' .. bucket .. '\t1')
end

-- Write everything, shared keys first, so that a wrong type there leaves the turn unchanged.
local function flush()
  if is_written then return end
  is_written = true
  if #counted > 0 then redis.call('RPUSH', PENDING, table.concat(counted, '\n')) end
  for _, command in ipairs(shared) do redis.call(unpack(command)) end
  if #facts > 0 then redis.call('HSET', ATTEMPTS, unpack(facts)) end
  if #texts > 0 then redis.call('HSET', TEXTS, unpack(texts)) end
  local lines = #events > 0 and table.concat(events, '\n')
  if lines then
    -- One entry for all events of a command, under the number of the last event.
    redis.call('XADD', LOG, seq .. '-0', 'e', lines)
    set('seq', seq)
  end
  if #fields > 0 then redis.call('HSET', TURN, unpack(fields)) end
  -- Nobody follows a turn that is only stored now: readers of an empty log fail.
  if lines and seq > #events then redis.call('PUBLISH', TURN .. ':bell', lines) end
  if lines and turn.outcome and turn.outcome ~= '' and turn.outcome ~= 'dead' then
    -- A dead letter stays until somebody drops it.
    for i = 1, (turn.apart or turn.request_bytes) and 4 or 3 do redis.call('PEXPIRE', KEYS[i], RETENTION_MS) end
  end
  for _, act in ipairs(afterwards) do
    local is_done, fault = pcall(act)
    fault = type(fault) == 'table' and fault.err or fault
    if not is_done then redis.log(redis.LOG_WARNING, 'line: ' .. tostring(fault)) end
  end
end
