-- Use up the answer to an interruption before the allowed action happens. A repeated command finds its own run.
-- args: token run
-- run: the nonce of the run that performs the action
-- answers {'used'} | {'gone'} (by another delivery) | {'stopped'} (cancelled before: it must not happen) | {'fenced'}

if turn.token ~= token then return { 'fenced' } end
if (turn.stop or '') ~= '' then return { 'stopped' } end
if (turn.answer_used or '') ~= '' and turn.answer_used ~= run then return { 'gone' } end
set('answer_used', run)
return { 'used' }
