#!lua flags=no-writes
-- Which of these turns match; a turn that is gone, or a key that holds no turn, does not.
-- KEYS: records (hash), all of one shard
-- ARGV[1] owner, or '' for all  ARGV[2] session id, or ''  ARGV[3] 1 for turns that lost a worker only, else ''
-- ARGV[4...] outcomes and states of unfinished turns; none: all
-- answers {{place in KEYS, status, created_at, finished_at, strikes}, ...}

local wanted = {}
for i = 4, #ARGV do wanted[ARGV[i]] = true end

local found = {}
for place, key in ipairs(KEYS) do
  local read = redis.pcall('HMGET', key, 'state', 'outcome', 'owner', 'session_id', 'created_at', 'finished_at', 'strikes')
  local state = not read.err and read[1]
  if state then
    local status = read[2] and read[2] ~= '' and read[2] or state
    if (ARGV[1] == '' or ARGV[1] == read[3]) and (ARGV[2] == '' or ARGV[2] == read[4]) and
      (ARGV[3] == '' or (tonumber(read[7]) or 0) > 0) and (#ARGV < 4 or wanted[status]) then
      found[#found + 1] = { place, status, read[5] or '0', read[6] or '0', read[7] or '0' }
    end
  end
end
return found
