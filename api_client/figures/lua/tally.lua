#!lua flags=no-writes
-- Add up finished turns by owner, API key or session, so that figures of many turns cost few commands. A turn that is
-- gone, or a key that holds no turn, does not count.
-- KEYS: records (hash), then their attempts (hash) in the same order
-- ARGV: the fields of the record by which to group
-- answers {{value of each field ..., outcome, 1 if the agent was asked again, turns, runs, tokens, cost in millionths,
--          rejected runs, tokens and cost (text, in dollars) of runs without an accepted answer}, ...}

local number = #KEYS / 2
local NAMES = { 'outcome', 'retries', 'attempt', 'tokens_used', 'cost_used', unpack(ARGV) }

local function decode(text)
  local is_json, data = pcall(cjson.decode, text or '{}')
  return is_json and type(data) == 'table' and data or {}
end

-- Add the runs of a turn whose answers were not accepted.
local function add_failed_runs(group, attempts, last)
  for attempt = 1, last do
    local facts = redis.pcall('HMGET', attempts, attempt .. ':decision', attempt .. ':completion', attempt .. ':usage')
    if facts.err then return end
    if facts[1] ~= 'accept' then
      local usage = decode(facts[3])
      if decode(facts[2]).verdict == 'complete' then group.rejected = group.rejected + 1 end
      group.failed_tokens = group.failed_tokens + (tonumber(usage.input_tokens) or 0) +
        (tonumber(usage.output_tokens) or 0)
      group.failed_cost = group.failed_cost + (tonumber(usage.cost_usd) or 0)
    end
  end
end

local groups, order = {}, {}
for place = 1, number do
  local read = redis.pcall('HMGET', KEYS[place], unpack(NAMES))
  if not read.err and read[1] and read[1] ~= '' then
    local again, attempts = (tonumber(read[2]) or 0) > 0, tonumber(read[3]) or 0
    local labels = {}
    for i = 6, #NAMES do labels[#labels + 1] = read[i] or '' end
    labels[#labels + 1] = read[1]
    labels[#labels + 1] = again and '1' or '0'
    local name = table.concat(labels, '\0')
    local group = groups[name]
    if not group then
      group = { labels = labels, turns = 0, runs = 0, tokens = 0, cost = 0, rejected = 0, failed_tokens = 0,
        failed_cost = 0 }
      groups[name] = group
      order[#order + 1] = group
    end
    group.turns = group.turns + 1
    group.runs = group.runs + attempts
    group.tokens = group.tokens + (tonumber(read[4]) or 0)
    group.cost = group.cost + (tonumber(read[5]) or 0)
    -- The only run of a turn that passed gave the accepted answer.
    if again or attempts > 1 or read[1] ~= 'passed' then add_failed_runs(group, KEYS[number + place], attempts) end
  end
end

local rows = {}
for i, group in ipairs(order) do
  local row = group.labels
  for _, count in ipairs({ group.turns, group.runs, group.tokens, group.cost, group.rejected, group.failed_tokens }) do
    row[#row + 1] = count
  end
  row[#row + 1] = string.format('%.9f', group.failed_cost)
  rows[i] = row
end
return rows
