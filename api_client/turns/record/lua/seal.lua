-- Accept an answer before it is published: from now on nothing calls the turn off, and a later holder
-- publishes and commits the answer written here. Idempotent, so it needs no number.
-- files, and the last key: as for commit
-- args: token files accepted
-- accepted: JSON, see accepted.py
-- answers {'sealed'} | {'stopped'} (cancelled before: it must not be published) | {'fenced'}
--         | {'held_back'}: its run is not stored yet, and no answers are judged now

if turn.token ~= token then return { 'fenced' } end
if (turn.stop or '') ~= '' then return { 'stopped' } end
-- Judged at once, with its run: the turn is where it would be had the run been stored before.
if turn.state == 'running' then
  if judging_held() then return { 'held_back' } end
  set('state', 'validating')
  set('next', 'turn.validate/' .. number('attempt'))
end
set('sealed', NOW)
if files ~= '' then share('HSET', KEYS[#KEYS], string.sub(SESSION, -32), files) end
text('accepted', accepted)
return { 'sealed' }
