-- Decide a suspended turn, once. The caller chose the decision's id, so a repeat after a lost reply changes nothing.
-- args: owner decision kind by note said name suspended
-- owner: '' for the operator  decision: its id, without spaces  kind: a choice offered by the question
-- by: the verified person  said: the edited text  name: the unverified name of the person, or ''
-- suspended: when the turn was suspended with the answered question, store time in ms
-- answers {'missing', ''} | {'decided', next link} | {'known', next link or ''} | {'not_suspended', state}

if not turn.state or (owner ~= '' and turn.owner ~= owner) then return { 'missing', '' } end
-- All ids are kept: a late repeat of a first decision must not become the second decision of a turn suspended again.
if string.find(' ' .. (turn.decided or ''), ' ' .. decision .. ' ', 1, true) then return { 'known', turn.next } end
if turn.state ~= 'suspended' then return { 'not_suspended', turn.state } end
if number('suspended_at') ~= tonumber(suspended) then return { 'not_suspended', turn.state } end
set('decided', (turn.decided or '') .. decision .. ' ')
decide(kind, by, note, said, name)
return { 'decided', turn.next }
