-- Accept an answer before it is published: from now on nothing calls the turn off, and whoever holds it after us
-- publishes and commits what is written here. Idempotent, so it needs no number.
-- ARGV[4] token  ARGV[5] what was accepted (JSON, see accepted.py)
-- answers {'sealed'} | {'stopped'} (called off before: it must not be published) | {'fenced'}

if not EXISTS or turn.token ~= ARGV[4] then return { 'fenced' } end
if (turn.stop or '') ~= '' then return { 'stopped' } end
redis.call('HSET', TURN, 'accepted', ARGV[5])
return { 'sealed' }
