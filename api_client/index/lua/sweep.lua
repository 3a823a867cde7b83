-- Remove earlier messages that a session's turns need no more, by the current retention. Idempotent.
-- answers {}

if redis.call('EXISTS', HISTORY) == 1 then sweep_history() end
return {}
