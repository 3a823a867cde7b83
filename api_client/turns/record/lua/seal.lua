-- Seal an accepted answer before its publication. Afterwards the turn cannot be cancelled, and a later holder publishes
-- and commits the sealed answer. Idempotent, so it needs no number.
-- files, and the last key: as for commit
-- args: token files accepted service
-- accepted: JSON, see accepted.py  service: as for commit; heard here if the run is not stored yet
-- answers {'sealed'} | {'stopped'} (cancelled before: it must not be published) | {'fenced'}
--         | {'held_back'}: its run is not stored yet, and no answers are validated now

if turn.token ~= token then return { 'fenced' } end
if (turn.stop or '') ~= '' then return { 'stopped' } end
-- Validated together with its run: the turn gets the state that storing the run first would have given it.
if turn.state == 'running' then
  if validation_held() then return { 'held_back' } end
  set('state', 'validating')
  set('next', 'turn.validate/' .. number('attempt'))
  heard_of_service(works(), service, '', 0, number('since'))
end
set('sealed', NOW)
if files ~= '' then share('HSET', KEYS[#KEYS], string.sub(SESSION, -32), files) end
text('accepted', accepted)
return { 'sealed' }
