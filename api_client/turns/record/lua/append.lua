-- Append events to the log. Numbered: a repeat after a lost reply is only answered, and no command is left out.
-- args: token nth# ...
-- nth: the command's number  ...: kind, data (JSON) of each event
-- answers {'done', seq} | {'fenced', 0} | {'behind', number of the last command that is known here}

if turn.token ~= token then return { 'fenced', 0 } end
if nth <= number('cmd') then return { 'done', seq } end
-- The store lost the end of its log; the holder still has the missing commands.
if nth > number('cmd') + 1 then return { 'behind', number('cmd') } end
set('cmd', nth)
for i = REST, #ARGV, 2 do emit(ARGV[i], ARGV[i + 1]) end
return { 'done', seq }
