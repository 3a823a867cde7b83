-- Call a turn off, in whatever state it is. Idempotent.
-- ARGV[4] owner, or '' for the operator  ARGV[5] outcome: cancelled
-- answers {'missing', ''} | {'finished', next turn of the session or ''} | {'stopping', ''}
--         | {'accepted', ''} (too late: the answer is being published)

if not EXISTS or (ARGV[4] ~= '' and turn.owner ~= ARGV[4]) then return { 'missing', '' } end
if turn.state == 'finished' then return { 'finished', '' } end
if (turn.accepted or '') ~= '' then return { 'accepted', '' } end
if (turn.token or '') ~= '' then
  if (turn.stop or '') == '' then
    redis.call('HSET', TURN, 'stop', ARGV[5])
    emit('turn.stopping', '{"reason":"' .. ARGV[5] .. '"}')
  end
  return { 'stopping', '' }
end
return { 'finished', give_up(ARGV[5]) }
