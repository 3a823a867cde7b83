-- Decide on a suspended turn, once. The caller made the decision's id, so a repeat after a lost reply
-- changes nothing.
-- args: owner decision kind by note said name suspended
-- owner: '' for the operator  decision: its id, without spaces  kind: a choice of the question
-- by: who  said: the text, of an edit  name: the name that was given for who, or ''
-- suspended: when the turn was suspended with the question that is answered, store time in ms
-- answers {'missing', ''} | {'decided', next link} | {'known', next link or ''} | {'not_suspended', state}

if not turn.state or (owner ~= '' and turn.owner ~= owner) then return { 'missing', '' } end
-- All ids are kept: a turn may be suspended again, and a late repeat of its first decision must not be its second.
if string.find(' ' .. (turn.decided or ''), ' ' .. decision .. ' ', 1, true) then return { 'known', turn.next } end
if turn.state ~= 'suspended' then return { 'not_suspended', turn.state } end
if number('suspended_at') ~= tonumber(suspended) then return { 'not_suspended', turn.state } end
set('decided', (turn.decided or '') .. decision .. ' ')
decide(kind, by, note, said, name)
return { 'decided', turn.next }
