#!lua flags=no-writes
-- A turn's events without the pieces of its answers, which are many.
-- KEYS[1] log (stream)  ARGV[1] behind this number  ARGV[2] how many entries are looked at
-- answers {number of the last one looked at, how many were looked at, how many pieces, event (JSON), ...}

local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])
local answer = { ARGV[1], #entries, 0 }
for _, entry in ipairs(entries) do
  answer[1] = string.match(entry[1], '^%d+')
  for wire in string.gmatch(entry[2][2], '[^\n]+') do
    -- The kind comes before the data, so what an agent writes cannot be taken for it.
    if string.match(wire, '"kind":"([^"]*)"') == 'attempt.output' then
      answer[3] = answer[3] + 1
    else
      answer[#answer + 1] = wire
    end
  end
end
return answer
