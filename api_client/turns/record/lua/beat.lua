-- Keep a lease. Idempotent, so it needs no number; also resumes a lease whose time ran out while nobody reaped it.
-- args: token
-- answers {'held', stop} | {'fenced', ''}

if turn.token ~= token then return { 'fenced', '' } end
set('lease_until', NOW + LEASE_MS)
look_again(NOW + LEASE_MS)
return { 'held', turn.stop or '' }
