-- Use up a person's yes to a tool call, before that call runs. A command that is sent again finds its own run.
-- args: token run
-- run: a nonce of the run in which the call runs
-- answers {'used'} | {'gone'} (by another delivery) | {'stopped'} (cancelled before: it must not run) | {'fenced'}

if turn.token ~= token then return { 'fenced' } end
if (turn.stop or '') ~= '' then return { 'stopped' } end
if (turn.permit or '') ~= '' and turn.permit ~= run then return { 'gone' } end
set('permit', run)
return { 'used' }
