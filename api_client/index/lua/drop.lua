-- Take a turn off the dead letter list; from now on it is kept as long as any finished turn. Idempotent.
-- ARGV[4] owner, or '' for the operator
-- answers {'missing'} | {'alive'} | {'dropped'}

if not EXISTS or (ARGV[4] ~= '' and turn.owner ~= ARGV[4]) then return { 'missing' } end
if turn.outcome ~= 'dead' then return { 'alive' } end
if redis.call('ZREM', DEAD, ID) == 1 then
  for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], int(SETTINGS.retention_ms)) end
end
return { 'dropped' }
