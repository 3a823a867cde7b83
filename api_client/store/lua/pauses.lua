-- What keeps turns from starting: operators' pauses, models' circuit breakers, services' rate limits. Follows turn.lua.
--
-- Fields of PAUSES, each a JSON object {until_ms, reason, ...}; until_ms 0: until somebody ends it (turns/pauses)
--   intake                       no new turns are stored
--   queue|run  queue|check       no agent starts, no answer is validated
--   model|NAME  owner|HASH  key|NAME   no agent starts of this model, for this owner, for turns of this key
--   breaker|NAME                 opened by errors: until_ms, for_ms (the open time), errors, probe (turn), probe_ms
--   errors|NAME                  consecutive errors of the model, a number
--   limit|UPSTREAM               a service limits us (429, 529): until_ms, for_ms (between two tries), heard_ms
--                                (the last such reply), errors, slot_ms (see hold_back), spent (no money is left)
-- Fields of TURN: held_back (the reported pause), held_since, probes (the model whose breaker it probes),
--                 asks (the service whose slot it has or waits for: see fair_queue.lua)

-- How long a probe may run before another turn replaces it, and the longest open time of a breaker.
local PROBE_MS, LONGEST_MS = 600000, 600000
-- Under a limit one run tries per interval; a refusal doubles the interval, up to the second value.
local PACE_MS, SLOWEST_MS = 1000, 60000
-- An answer under a limit halves the interval, from PACE_MS on; below this value the limit ends.
local FASTEST_MS = 100

local function works()
  return (turn.stage_model or '') ~= '' and (string.gsub(turn.stage_model, '|', '_')) or model()
end

-- Return the service of a model; several models may share a service.
local function service_of(label) return UPSTREAMS()[label] or label end
local function limit_of(label) return 'limit|' .. service_of(label) end

-- The pauses as read by this command, with its own changes; false if a pause does not exist.
local known
local function write(name, pause)
  known[name] = cjson.encode(pause)
  share('HSET', PAUSES, name, known[name])
end
local function erase(name)
  known[name] = false
  share('HDEL', PAUSES, name)
end
local function learn(names)
  for i, text in ipairs(redis.call('HMGET', PAUSES, unpack(names))) do known[names[i]] = text end
end
-- Return the pause of this name, or nil. All pauses that may concern the turn are read together.
local function pause_of(name)
  if not known then
    known = {}
    if look().pauses then
      learn({ 'intake', 'queue|run', 'queue|check', 'owner|' .. (turn.owner or ''), 'key|' .. (turn.key or ''),
        'model|' .. works(), 'breaker|' .. works(), 'errors|' .. works(), limit_of(works()) })
    end
  end
  if look().pauses and known[name] == nil then learn({ name }) end -- a pause of the model that takes the turn over
  return known[name] and cjson.decode(known[name]) or nil
end
local function is_on(pause) return pause and (pause.until_ms == 0 or pause.until_ms > NOW) end

-- Return the active pause of this name, or nil.
local function in_force(name)
  local pause = pause_of(name)
  return is_on(pause) and pause or nil
end

-- The turn no longer uses or waits for its service.
local function stop_asking()
  local service = turn.asks or ''
  if service == '' then return end
  set('asks', '')
  after(function() leave_service(service, turn.owner or '', number('created_at'), ID) end)
end

-- Return whether something keeps answers from being validated now.
local function validation_held() return in_force('queue|check') ~= nil end

-- Return the answer to a submission while no new turns are stored: {'closed', until in ms, reason}; otherwise nil.
local function intake_closed(owner, key, label)
  turn.owner, turn.key, turn.model = owner, key, label
  local intake = in_force('intake')
  return intake and { 'closed', intake.until_ms, intake.reason }
end

-- Return the name and the pause that keeps the turn's next task from starting, or nil. runs: an agent would run. After
-- a breaker's open time one turn becomes the probe and may start.
local function paused(runs)
  if not runs then
    local pause = in_force('queue|check')
    return pause and 'queue|check', pause
  end
  local names = { 'queue|run', 'owner|' .. (turn.owner or ''), 'key|' .. (turn.key or ''), 'model|' .. works(),
    limit_of(works()), 'breaker|' .. works() }
  for i = 1, 5 do
    local pause = in_force(names[i])
    if pause then return names[i], pause end
  end
  local service = service_of(works())
  if not has_place(service, ID) then
    return names[5], { until_ms = 0, full = true, reason = 'it has as many agents as may ask it at once' }
  end
  local breaker = pause_of(names[6])
  if not breaker then return nil end
  if breaker.until_ms > NOW then return names[6], breaker end
  if breaker.probe ~= '' and breaker.probe ~= ID and breaker.probe_ms > NOW then
    breaker.until_ms = breaker.probe_ms
    return names[6], breaker
  end
  breaker.probe, breaker.probe_ms = ID, NOW + PROBE_MS
  write(names[6], breaker)
  set('probes', works())
  return nil
end

-- A turn's deadline does not count the time it was held back.
local function count_in()
  if number('held_since') == 0 then return end
  if number('deadline_at') > 0 then set('deadline_at', number('deadline_at') + NOW - number('held_since')) end
  set('still_ms', number('still_ms') + NOW - number('held_since'))
  set('held_since', 0)
end

-- Return what keeps the turn's next task from starting now, for hold_back, or nil.
local function found_hold(runs)
  local name, pause = paused(runs)
  return name and { name = name, pause = pause }
end

-- Make the turn wait until the obstacle ends. Nobody announces it meanwhile.
local function hold_back(hold)
  local name, pause = hold.name, hold.pause
  local again = NOW + 64 * ANNOUNCE_MS
  local service = service_of(works())
  if not pause.full or turn.asks ~= service then stop_asking() end
  if pause.full then
    -- The turn becomes due when it gets another turn's slot.
    set('asks', service)
    share('ZADD', AT_WORK, 0, waits_at(service, turn.owner or '', number('created_at'), ID))
  elseif name == limit_of(works()) then
    -- Each turn returns at a time of its own: one run may try per for_ms.
    pause.slot_ms = math.min(math.max(pause.slot_ms + pause.for_ms, pause.until_ms), again)
    again = math.min(again, pause.slot_ms)
    write(name, pause)
  elseif pause.until_ms > NOW and pause.until_ms < again then
    again = pause.until_ms
  end
  -- Breakers and limits are nobody's choice, so the turn's time continues.
  local stands = name ~= 'breaker|' .. works() and name ~= limit_of(works())
  if number('held_since') > 0 and not stands then count_in() end
  if number('held_since') == 0 and stands then set('held_since', NOW) end
  local reason = name .. ' ' .. string.format('%.0f', pause.until_ms) .. ' ' .. pause.reason
  -- A limit is extended by each trying run, but logged once.
  local said = turn.held_back == reason or (name == limit_of(works()) and
    string.sub(turn.held_back or '', 1, #name + 1) == name .. ' ')
  set('held_back', reason)
  if not said then
    emit('turn.paused', '{"what":' .. cjson.encode(string.match(name, '^%a+')) .. ',"reason":' ..
      cjson.encode(pause.reason) .. ',"until":' .. math.floor(pause.until_ms / 1000) .. '}')
  end
  if not stands and number('deadline_at') > NOW then again = math.min(again, number('deadline_at')) end
  set('not_before', again)
  set('announced', 1)
  give_place()
  share('ZADD', HELD, 'NX', NOW, ID)
  share('ZADD', DUE, again, ID)
end

-- The turn continues.
local function continue_held()
  if (turn.held_back or '') == '' then return end
  count_in()
  set('held_back', '')
  set('not_before', 0)
  share('ZREM', HELD, ID)
  emit('turn.resumed', '{}')
end

-- Under a limit, hand the turn to the first fallback model whose service is not limited, as after_run.py does after a
-- limited run. Return false if there is none.
local function pass_on(name, pause)
  if name ~= limit_of(works()) or pause.full or number('stage') > 0 then return false end
  if (turn.interruption or '{}') ~= '{}' then return false end
  local fell = (turn.fell or '') ~= '' and cjson.decode(turn.fell) or {}
  for _, other in ipairs(FALLBACKS()[model()] or {}) do
    local label = string.gsub(other, '|', '_')
    if not fell[other] and label ~= works() and not in_force(limit_of(label)) then
      local from = (turn.stage_model or '') ~= '' and turn.stage_model or model()
      fell[from] = { attempt = math.max(1, number('attempt')), fault = 'limit', reason = pause.reason, next = other }
      set('fell', cjson.encode(fell))
      set('stage_model', other)
      set('agent_session', '')
      set('transients', 0)
      emit('turn.retrying', '{"attempt":' .. fell[from].attempt .. ',"max_attempts":' .. most_attempts() ..
        ',"reason":"model","model":' .. cjson.encode(other) ..
        ',"codes":[],"feedback":"","goes_on":false,"delay_seconds":0}')
      return true
    end
  end
  return false
end

-- Before a task starts: return the name of the pause that holds the turn back; with nil the turn is released.
local function held_back(runs)
  -- A cancelled turn ends regardless of pauses, as does a turn kept by a breaker until its deadline.
  if (turn.stop or '') ~= '' or is_sealed() then return nil end
  local clock_stands = number('held_since') > 0
  if not clock_stands and called_off(runs) ~= '' then return nil end
  local name, pause = paused(runs)
  while name and pass_on(name, pause) do name, pause = paused(runs) end
  if name then
    hold_back({ name = name, pause = pause })
    return name
  end
  continue_held()
end

-- Make all held-back turns due now; other pauses hold them back again.
local function look_at_all_held()
  for _, id in ipairs(redis.call('ZRANGE', HELD, 0, -1)) do share('ZADD', DUE, 'XX', NOW, id) end
end

-- An agent starts: it has its slot at the service, and under a limit no other agent tries for a while.
pace = function()
  local service, name = service_of(works()), limit_of(works())
  if turn.asks ~= service then stop_asking() end
  if AT_ONCE()[service] then
    share('ZREM', AT_WORK, waits_at(service, turn.owner or '', number('created_at'), ID))
    share('ZADD', AT_WORK, 0, at_service(service) .. '|' .. ID)
    set('asks', service)
  end
  local limit = pause_of(name)
  if not limit then return end
  limit.until_ms = math.max(limit.until_ms, NOW + limit.for_ms)
  write(name, limit)
end

-- A run begun at began_ms reports about a limited service. said: limited | spent | answered.
local function heard_of_limit(name, said, reason, wait_ms, began_ms)
  local limit = pause_of(name)
  local tried = limit and began_ms > limit.heard_ms
  if said ~= 'answered' then
    limit = limit or { until_ms = 0, for_ms = PACE_MS, since = NOW / 1000, errors = 0, slot_ms = 0 }
    if said == 'spent' then limit.for_ms = SLOWEST_MS
    elseif tried then limit.for_ms = math.min(2 * limit.for_ms, SLOWEST_MS) end
    limit.until_ms = math.max(limit.until_ms, NOW + math.min(math.max(wait_ms, limit.for_ms), LONGEST_MS))
    limit.heard_ms, limit.errors, limit.reason, limit.spent = NOW, limit.errors + 1, reason, said == 'spent'
    write(name, limit)
  elseif tried then
    -- A single answer proves little, so waiting turns start faster with each answer.
    limit.for_ms, limit.slot_ms, limit.spent = math.min(limit.for_ms, 2 * PACE_MS) / 2, 0, false
    limit.until_ms = math.min(limit.until_ms, NOW + limit.for_ms)
    if limit.for_ms < FASTEST_MS or redis.call('ZCARD', HELD) == 0 then erase(name) else write(name, limit) end
    look_at_all_held()
  end
end

-- The turn's run ended, and reports about its model's service: answered | limited | spent | failed | ''. wait_ms: the
-- wait demanded by the service. began_ms: the start of the run.
local function heard_of_service(label, said, reason, wait_ms, began_ms)
  if said == 'answered' or said == 'limited' or said == 'spent' then
    heard_of_limit(limit_of(label), said, reason, wait_ms, began_ms)
    said = 'answered'
  end
  local probed = (turn.probes or '') ~= ''
  if probed then set('probes', '') end
  if said == '' and not probed then return end
  -- Errors in a row that open the breaker, 0: never; and for how long, doubled each time that a probe fails.
  local most, opens_ms = unpack(BREAKERS()[label] or BREAKERS()[''])
  if most == 0 and said ~= '' then return end
  local breaker, errors = pause_of('breaker|' .. label), pause_of('errors|' .. label) or 0
  if said == 'answered' then
    if errors > 0 then erase('errors|' .. label) end
    if not breaker then return end
    erase('breaker|' .. label)
    look_at_all_held()
    count('breaker.closed|' .. label)
  elseif said == '' then
    if breaker and breaker.probe == ID then
      breaker.probe = ''
      write('breaker|' .. label, breaker)
      look_at_all_held()
    end
  elseif breaker and breaker.probe ~= ID then
    return -- the run began before the breaker opened
  elseif breaker or errors + 1 >= most then
    local for_ms = breaker and math.min(2 * breaker.for_ms, math.max(LONGEST_MS, opens_ms)) or opens_ms
    write('breaker|' .. label, { until_ms = NOW + for_ms, for_ms = for_ms,
      since = breaker and breaker.since or NOW / 1000, errors = breaker and breaker.errors + 1 or most, reason = reason,
      probe = '', probe_ms = 0 })
    erase('errors|' .. label)
    count('breaker.opened|' .. label)
  else
    write('errors|' .. label, errors + 1)
  end
end

-- The turn ends: release it from pauses, its service and its probe.
end_holds = function()
  stop_asking()
  if (turn.held_back or '') ~= '' then
    share('ZREM', HELD, ID)
    count_in()
  end
  if (turn.probes or '') ~= '' then heard_of_service(turn.probes, '', '') end
end
