-- Allow a turn's first run: at once, or in the order of the fair queue. Repeating is harmless.
-- args: message channel event since#
-- since: creation time of the session's preceding turn in ms, or 0; the turn starts before its owner's later turns
-- message: for the queue, or '' if the caller announces the result of release.lua  channel, event: its task event
-- answers {'gone'} (nothing is to start) | {'begun'} (it has run: it goes before those that never did)
--         | {'lined_up'} | {'waits'} (it stood there before)

if turn.state ~= 'queued' or (turn.token or '') ~= '' then return { 'gone' } end
if number('delivery') > 0 then return { 'begun' } end
if not is_head() or held_back(true) or called_off(true) ~= '' or number('not_before') > NOW then return { 'gone' } end
local waits = entry_at(turn.place or '')
local created_at = since > 0 and math.min(number('created_at'), since) or number('created_at')
local priority = (turn.priority or '') ~= '' and turn.priority or 'interactive'
set('lined', 1)
if not waits then set('place', place_key(priority, turn.owner or '', created_at, ID)) end
after(function()
  if waits then
    redis.call('ZADD', DUE, before(number('deadline_at'), NOW + 64 * ANNOUNCE_MS), ID)
    put(waits, (time_of(waits)))
    return fill_up()
  end
  -- The turn started before and its message was lost: it occupies no slot meanwhile.
  leave_place(ID, turn.owner or '')
  redis.call('ZREM', LET_GO, ID)
  start(ID, { place = turn.place, owner = turn.owner or '', weight = math.max(1, number('weight')),
    priority = priority, most = number('most'),
    link = turn.next, session = turn.session_id, deadline_at = number('deadline_at') }, message)
  if message ~= '' then redis.pcall('PUBLISH', channel, event) end
end)
return { waits and 'waits' or 'lined_up' }
