-- Use up the answer to an interruption, before what it allows happens. A command that is sent again finds its own run.
-- args: token run
-- run: a nonce of the run in which that happens
-- answers {'used'} | {'gone'} (by another delivery) | {'stopped'} (cancelled before: it must not happen) | {'fenced'}

if turn.token ~= token then return { 'fenced' } end
if (turn.stop or '') ~= '' then return { 'stopped' } end
if (turn.answer_used or '') ~= '' and turn.answer_used ~= run then return { 'gone' } end
set('answer_used', run)
return { 'used' }
