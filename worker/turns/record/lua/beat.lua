-- Keep a lease. Idempotent, so it needs no number; also resumes a lease whose time ran out while nobody reaped it.
-- ARGV[4] token  ARGV[5] lease in ms
-- answers {'held', stop} | {'fenced', ''}

if not EXISTS or turn.token ~= ARGV[4] then return { 'fenced', '' } end
redis.call('HSET', TURN, 'lease_until', int(NOW + tonumber(ARGV[5])))
look_again(NOW + tonumber(ARGV[5]))
return { 'held', turn.stop or '' }
