#!lua flags=no-writes
-- Which of these turns match; a turn that is gone, or a key that holds no turn, does not.
-- KEYS: records (hash); with a rule their attempts (hash) behind them, in the same order
-- ARGV[1] owner, or '' for all  ARGV[2] session id, or ''  ARGV[3] model, or ''
-- ARGV[4] 1 for turns that lost a worker only, else ''  ARGV[5] a rule that an answer broke, or ''
-- ARGV[6] labels and their values: a JSON object
-- ARGV[7...] outcomes and states of unfinished turns; none: all
-- answers {{place in KEYS, status, created_at, finished_at, strikes, model}, ...}

local owner, session, model, lost, rule = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local labels = cjson.decode(ARGV[6])
local wanted = {}
for i = 7, #ARGV do wanted[ARGV[i]] = true end
local number = rule == '' and #KEYS or #KEYS / 2

local function has_labels(record)
  for name, value in pairs(labels) do
    if redis.call('HGET', record, name) ~= value then return false end
  end
  return true
end

local function broke(attempts, last)
  local names = {}
  for attempt = 1, math.min(tonumber(last) or 1, 100) do names[attempt] = attempt .. ':issues' end
  local read = redis.pcall('HMGET', attempts, unpack(names))
  if read.err then return false end
  for _, text in ipairs(read) do
    local known, issues = pcall(cjson.decode, text or '[]')
    for _, issue in ipairs(known and type(issues) == 'table' and issues or {}) do
      if issue.validator == rule or issue.code == rule then return true end
    end
  end
  return false
end

local found = {}
for place = 1, number do
  local read = redis.pcall('HMGET', KEYS[place], 'state', 'outcome', 'owner', 'session_id', 'created_at', 'finished_at',
    'strikes', 'model', 'attempt')
  local state = not read.err and read[1]
  if state then
    local status = read[2] and read[2] ~= '' and read[2] or state
    if (owner == '' or owner == read[3]) and (session == '' or session == read[4]) and
      (model == '' or model == read[8]) and has_labels(KEYS[place]) and
      (lost == '' or (tonumber(read[7]) or 0) > 0) and
      (#ARGV < 7 or wanted[status]) and (rule == '' or broke(KEYS[number + place], read[9])) then
      found[#found + 1] = { place, status, read[5] or '0', read[6] or '0', read[7] or '0', read[8] or '' }
    end
  end
end
return found
