-- Decide on a parked turn, once. The caller made the decision's id, so a repeat after a lost reply
-- changes nothing.
-- args: owner decision kind by note said name parked
-- owner: '' for the operator  decision: its id, without spaces  kind: a choice of the question
-- by: who  said: the text, of an edit  name: the name that was given for who, or ''
-- parked: when the turn was parked with the question that is answered, store time in ms
-- answers {'missing', ''} | {'decided', next link} | {'known', next link or ''} | {'not_parked', state}

if not turn.state or (owner ~= '' and turn.owner ~= owner) then return { 'missing', '' } end
-- All ids are kept: a turn may be parked again, and a late repeat of its first decision must not be its second.
if string.find(' ' .. (turn.decided or ''), ' ' .. decision .. ' ', 1, true) then return { 'known', turn.next } end
if turn.state ~= 'parked' then return { 'not_parked', turn.state } end
if number('parked_at') ~= tonumber(parked) then return { 'not_parked', turn.state } end
set('decided', (turn.decided or '') .. decision .. ' ')
decide(kind, by, note, said, name)
return { 'decided', turn.next }
