-- Renew a lease. Idempotent, so it needs no number. Also revives an expired lease that nobody reaped.
-- args: token
-- answers {'held', stop} | {'fenced', ''}

if turn.token ~= token then return { 'fenced', '' } end
set('lease_until', NOW + LEASE_MS)
look_again(NOW + LEASE_MS)
return { 'held', turn.stop or '' }
