-- Cancel a turn in any state. Idempotent.
-- args: owner reason
-- owner: '' for the operator  reason: cancelled
-- answers {'missing', ''} | {'finished', next turn of the session or ''} | {'stopping', ''}
--         | {'accepted', ''} (too late: the answer is being published)

if not turn.state or (owner ~= '' and turn.owner ~= owner) then return { 'missing', '' } end
if turn.state == 'finished' then return { 'finished', '' } end
if is_sealed() then return { 'accepted', '' } end
if (turn.token or '') ~= '' then
  if (turn.stop or '') == '' then
    set('stop', reason)
    emit('turn.stopping', '{"reason":"' .. reason .. '"}')
  end
  return { 'stopping', '' }
end
return { 'finished', give_up(reason) }
