-- Accept an answer before it is published: from now on nothing calls the turn off, and a later holder
-- publishes and commits what is written here. Idempotent, so it needs no number.
-- args: token accepted
-- accepted: JSON, see accepted.py
-- answers {'sealed'} | {'stopped'} (cancelled before: it must not be published) | {'fenced'}

if turn.token ~= token then return { 'fenced' } end
if (turn.stop or '') ~= '' then return { 'stopped' } end
set('sealed', '1')
text('accepted', accepted)
return { 'sealed' }
