-- Take a turn off the dead letter list; from now on it is kept as long as any finished turn. Idempotent.
-- args: owner
-- owner: '' for the operator
-- answers {'missing'} | {'alive'} | {'dropped'}

if not turn.state or (owner ~= '' and turn.owner ~= owner) then return { 'missing' } end
if turn.outcome ~= 'dead' then return { 'alive' } end
if redis.call('ZREM', DEAD, ID) == 1 then
  leave_history()
  for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], RETENTION_MS) end
end
return { 'dropped' }
