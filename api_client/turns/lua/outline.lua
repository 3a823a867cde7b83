#!lua flags=no-writes
-- Return a turn's events without the many pieces of its answers.
-- KEYS[1] log (stream)  ARGV[1] start behind this number  ARGV[2] how many entries to read
-- answers {number of the last entry read, entries read, number of pieces, event (JSON), ...}

local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])
local answer = { ARGV[1], #entries, 0 }
for _, entry in ipairs(entries) do
  answer[1] = string.match(entry[1], '^%d+')
  for wire in string.gmatch(entry[2][2], '[^\n]+') do
    -- The kind precedes the data, so an agent's text cannot be mistaken for the kind.
    if string.match(wire, '"kind":"([^"]*)"') == 'attempt.output' then
      answer[3] = answer[3] + 1
    else
      answer[#answer + 1] = wire
    end
  end
end
return answer
