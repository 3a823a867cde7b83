-- Take a turn for one link of its chain. The worker made the token, so a repeat after a lost reply finds its own claim.
-- ARGV[4] link, such as turn.run/1  ARGV[5] token  ARGV[6] lease in ms  ARGV[7] worker (JSON string)
-- ARGV[8] 1 when this process works on nothing else, else 0  ARGV[9] strikes that make a turn dead
-- answers {'claimed', now, record ...} | {'refused', why}

if not EXISTS then return { 'refused', 'missing' } end
if turn.token == ARGV[5] then return claimed() end
if turn.state == 'finished' then return { 'refused', 'finished' } end
-- A token is good for one claim: one that is delivered late, after its holder was lost or committed, takes nothing.
if string.find(turn.tokens or '', ARGV[5], 1, true) then return { 'refused', 'late' } end
if (turn.token or '') ~= '' then return { 'refused', 'held' } end
if turn.next ~= ARGV[4] then return { 'refused', 'not_next' } end
if not is_head() then return { 'refused', 'waiting' } end
if called_off(turn.state == 'queued') ~= '' then
  look_again(NOW)
  return { 'refused', 'called_off' }
end
if number('not_before') > NOW then return { 'refused', 'early' } end
-- The delivery before the last strike runs in a process of its own: only what dies alone is to blame for it.
if ARGV[8] ~= '1' and number('strikes') >= tonumber(ARGV[9]) - 1 then return { 'refused', 'alone' } end

-- A phase may have waited for others: its time begins now.
if number('deadline_at') == 0 and number('deadline_ms') > 0 then
  turn.deadline_at = int(NOW + number('deadline_ms'))
  redis.call('HSET', TURN, 'deadline_at', turn.deadline_at)
end
redis.call('HSET', TURN, 'tokens', (turn.tokens or '') .. ARGV[5] .. ' ', 'cmd', 0, 'alone', ARGV[8],
  'worker', cjson.decode('[' .. ARGV[7] .. ']')[1])
begin(ARGV[4], turn.state == 'queued' and 'running' or 'validating', ARGV[5], tonumber(ARGV[6]), ARGV[7])
return claimed()
