#!lua flags=no-writes
-- Return which of these turns match. Turns that are gone, and keys that hold no turn, do not.
-- KEYS: records (hash); with a rule their attempts (hash) behind them, in the same order; with a text their long texts
--       (hash) behind these
-- ARGV[1] owner, or '' for all  ARGV[2] session id, or ''  ARGV[3] model, or ''
-- ARGV[4] 1 for turns that lost a worker only, else ''  ARGV[5] a rule that an answer broke, or ''
-- ARGV[6] labels and their values: a JSON object
-- ARGV[7] part of the message in lower case, as JSON has it, or ''
-- ARGV[8] further characters that the caller must look at, each with a line end; ''
-- ARGV[9...] outcomes and states of unfinished turns; none: all
-- answers {{place in KEYS, status, created_at, finished_at, strikes, model}, ...}

local owner, session, model, lost, rule = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local labels = cjson.decode(ARGV[6])
local wanted = {}
for i = 9, #ARGV do wanted[ARGV[i]] = true end
local text, letters = ARGV[7], ARGV[8]
local by_text = text ~= '' and 1 or 0
local number = #KEYS / (1 + (rule == '' and 0 or 1) + by_text)

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

-- Return false if the turn's request surely lacks the text; the caller looks at the message of the others.
local function may_say(record, texts)
  local said = redis.pcall('HGET', record, 'request') or redis.pcall('HGET', texts, 'request')
  if type(said) ~= 'string' then return false end
  said = string.lower(said)
  for _, letter in ipairs({ 'ß', 'ẞ' }) do
    if string.find(said, letter, 1, true) then said = string.gsub(said, letter, 'ss') end
  end
  if string.find(said, text, 1, true) then return true end
  if not string.find(said, '[\128-\255]') then return false end
  for letter in string.gmatch(letters, '[^\n]+') do
    if string.find(said, letter, 1, true) then return true end
  end
  return false
end

local found = {}
-- Few turns have the text: their other fields are read only where an owner or session does not leave fewer.
local text_first = by_text == 1 and owner == '' and session == ''
for place = 1, number do
  local state, read
  if not text_first or may_say(KEYS[place], KEYS[#KEYS - number + place]) then
    read = redis.pcall('HMGET', KEYS[place], 'state', 'outcome', 'owner', 'session_id', 'created_at', 'finished_at',
      'strikes', 'model', 'attempt')
    state = not read.err and read[1]
  end
  if state then
    local status = read[2] and read[2] ~= '' and read[2] or state
    if (owner == '' or owner == read[3]) and (session == '' or session == read[4]) and
      (model == '' or model == read[8]) and has_labels(KEYS[place]) and
      (lost == '' or (tonumber(read[7]) or 0) > 0) and
      (#ARGV < 9 or wanted[status]) and (rule == '' or broke(KEYS[number + place], read[9])) and
      (by_text == 0 or text_first or may_say(KEYS[place], KEYS[#KEYS - number + place])) then
      found[#found + 1] = { place, status, read[5] or '0', read[6] or '0', read[7] or '0', read[8] or '' }
    end
  end
end
return found
