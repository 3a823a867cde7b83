-- Decide on a parked turn, once. The caller made the decision's id, so a repeat after a lost reply decides nothing anew.
-- ARGV[4] owner, or '' for the operator  ARGV[5] id of the decision, without spaces  ARGV[6] approve | edit | retry | reject
-- ARGV[7] who  ARGV[8] note  ARGV[9] text  ARGV[10] the name that was given for who, or ''
-- answers {'missing', ''} | {'decided', next link} | {'known', next link or ''} | {'not_parked', state}

if not EXISTS or (ARGV[4] ~= '' and turn.owner ~= ARGV[4]) then return { 'missing', '' } end
-- All ids are kept: a turn may be parked again, and a late repeat of its first decision must not be its second.
if string.find(' ' .. (turn.decided or ''), ' ' .. ARGV[5] .. ' ', 1, true) then return { 'known', turn.next } end
if turn.state ~= 'parked' then return { 'not_parked', turn.state } end
redis.call('HSET', TURN, 'decided', (turn.decided or '') .. ARGV[5] .. ' ')
decide(ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10])
return { 'decided', turn.next }
