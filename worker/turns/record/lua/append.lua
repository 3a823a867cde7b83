-- Add events to the log. Numbered: one whose reply was lost is answered, not repeated, and none is left out.
-- ARGV[4] token  ARGV[5] number of the command  ARGV[6], ARGV[7] kind, data (JSON); and so on
-- answers {'done', seq} | {'fenced', 0} | {'behind', number of the last command that is known here}

if not EXISTS or turn.token ~= ARGV[4] then return { 'fenced', 0 } end
if tonumber(ARGV[5]) <= number('cmd') then return { 'done', seq } end
-- The store lost the end of its log: what is missing was answered once, and the holder still has it.
if tonumber(ARGV[5]) > number('cmd') + 1 then return { 'behind', number('cmd') } end
redis.call('HSET', TURN, 'cmd', ARGV[5])
for i = 6, #ARGV, 2 do emit(ARGV[i], ARGV[i + 1]) end
return { 'done', seq }
