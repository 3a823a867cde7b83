-- Add events to the log. Numbered: one whose reply was lost is answered, not repeated, and none is left out.
-- args: token nth# ...
-- nth: number of the command  ...: kind, data (JSON) of each event
-- answers {'done', seq} | {'fenced', 0} | {'behind', number of the last command that is known here}

if turn.token ~= token then return { 'fenced', 0 } end
if nth <= number('cmd') then return { 'done', seq } end
-- The store lost the end of its log: the missing part was answered once, and the holder still has it.
if nth > number('cmd') + 1 then return { 'behind', number('cmd') } end
set('cmd', nth)
for i = REST, #ARGV, 2 do emit(ARGV[i], ARGV[i + 1]) end
return { 'done', seq }
