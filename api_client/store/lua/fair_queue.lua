-- The fair queue: decides which turn that never ran starts next. Commands change the queue after their other writes.
-- Its functions receive all data as arguments and read no records.
--
-- Start-time fair queueing between owners: each owner has a time on the clock of its priority, the earliest start of
-- its next turn. The owner with the earliest time starts a turn, the clock moves to that time, and the owner's time
-- advances by 1 / weight. New owners begin now; returning owners not before their time. The oldest turn of an owner
-- starts first. A started turn becomes a Celery message. At most AHEAD messages wait in Celery's queue, so that
-- newcomers start soon; all other turns wait here.
--
-- KEYS 14  WAITING   zset    PRIORITY|OWNER|CREATED|ID|JSON {who, owner, priority, weight, most, link, session}, line
--                            end, message; all of score 0: in the order of the texts
--      15  SHARES    hash    ahead: interactive turns started since the last background turn
--      16  FIRST     zset    PRIORITY|OWNER by time, of interactive turns; scores from AWAY on: not allowed to start;
--                            CLOCK: the clock of this priority, negative
--      17  SECOND    zset    the same for background turns
--      18  LET_GO    zset    started and unclaimed turns, by start time; only if the queue is elsewhere
--      19  AT_WORK   zset    OWNER|ID, all of score 0: turns that occupy a slot, of owners with limited slots;
--                            then services: }SERVICE|ID has a slot, }SERVICE}OWNER|CREATED|ID waits for a slot
--      20  QUEUE     list    Celery's queue, if it is in this database (QUEUED)
-- AHEAD and FAR_AHEAD limit the waiting messages, counted in the queue or else in LET_GO.

local AHEAD, FAR_AHEAD, AWAY, CLOCK = 2, 16, 10000000000, 'clock'
-- One of this many started turns is a background turn, if any waits.
local SHARE = 8
-- Turns of the same time start in the order of their arrival.
local TICK = 0.000001

local WAITING, SHARES, FIRST, SECOND = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local LET_GO, AT_WORK, QUEUE = KEYS[18], KEYS[19], KEYS[20]

-- The length of Celery's queue, and what exists, as far as this command knows.
local queued, seen
-- The keys that look() asks for, by name; a command may add others. With n keys one command names 2^n - 1.
local looked_at = { { 'waiting', WAITING }, { 'background', SECOND }, { 'pauses', PAUSES } }
-- Return what exists. One command tells it: a key counts as often as it is named.
local function look()
  if seen then return seen end
  local keys = {}
  for i, each in ipairs(looked_at) do
    for _ = 1, 2 ^ (i - 1) do keys[#keys + 1] = each[2] end
  end
  local sum = redis.call('EXISTS', unpack(keys))
  seen = {}
  for i, each in ipairs(looked_at) do seen[each[1]] = sum % 2 ^ i >= 2 ^ (i - 1) end
  return seen
end
local function is_empty()
  if look().waiting == nil then look().waiting = redis.call('EXISTS', WAITING) == 1 end
  return not look().waiting
end
local function owners_of(priority) return priority == 'background' and SECOND or FIRST end
local function plain(owner) return (string.gsub(owner, '[|}\n]', '_')) end
local function within(prefix) return '[' .. prefix .. '|', '(' .. prefix .. '}' end

-- Remove the entry at a place. By the place: an entry is long, and the append-only file would get it again.
local function remove(at)
  look().waiting = nil
  redis.call('ZREMRANGEBYLEX', WAITING, within(at))
end

-- Return where a turn waits, which its record keeps as `place`: the start of its entry. Turns of the same millisecond
-- keep the order of their arrival, by the microseconds of now.
local function place_key(priority, owner, created_at, id)
  return string.format('%s|%s|%015.0f%06d|%s', priority, plain(owner), created_at, clock[2], id)
end

-- Return the first two entries of an owner, or nil.
local function first_of(who)
  local from, to = within(who)
  return unpack(redis.call('ZRANGEBYLEX', WAITING, from, to, 'LIMIT', 0, 2))
end

-- Return whether all slots of an owner are occupied.
local function is_full(owner, most)
  local from, to = within(owner)
  return most > 0 and redis.call('ZLEXCOUNT', AT_WORK, from, to) >= most
end

-- Return what an entry says, or nil, also if it cannot be read.
local function read_entry(entry)
  local at, id, said, message = string.match(entry or '', '^([^|]*|[^|]*|[^|]*|([^|]*))|([^\n]*)\n(.*)$')
  local is_read, place = pcall(cjson.decode, said or '')
  if not is_read or type(place) ~= 'table' or not (place.who and place.owner and place.priority) then return nil end
  if type(place.weight) ~= 'number' or type(place.most) ~= 'number' then return nil end
  place.at, place.id, place.message = at, id, message
  return place
end
-- Return the limit of the newest waiting turn of an owner with limited slots: the limit may have changed since.
local function newest_limit(place)
  local from, to = within(place.who)
  local newest = place.most > 0 and redis.call('ZREVRANGEBYLEX', WAITING, to, from, 'LIMIT', 0, 1)[1]
  return (newest and read_entry(newest) or place).most
end

-- Include an owner in the scheduling if it has a waiting turn and a free slot; exclude it otherwise.
-- clock: the new time of the clock, or nil
local function schedule(place, at, first, clock)
  local owners = owners_of(place.priority)
  if first then look().waiting = true end
  if place.priority == 'background' then look().background = true end
  local takes_part = first and not is_full(place.owner, newest_limit(place))
  local score = takes_part and at or AWAY + at
  if not clock then return redis.call('ZADD', owners, score, place.who) end
  redis.call('ZADD', owners, score, place.who, -clock, CLOCK)
  -- The time of owners that are away has passed, so they would begin now anyway.
  if not takes_part then redis.call('ZREMRANGEBYSCORE', owners, AWAY, AWAY + clock) end
end
local function put(place, at) schedule(place, at, (first_of(place.who))) end

-- Return an owner's time: its stored time if that lies ahead, or now; and whether the owner takes part.
local function time_of(place)
  local own, clock = unpack(redis.call('ZMSCORE', owners_of(place.priority), place.who, CLOCK))
  local time = tonumber(own or '0')
  return math.max(-tonumber(clock or '0'), time >= AWAY and time - AWAY or time), own and time < AWAY
end

-- Return the entry of the turn that waits at this place, or nil, also if the queue is broken.
local function entry_at(at)
  local from, to = within(at)
  return at ~= '' and read_entry(redis.pcall('ZRANGEBYLEX', WAITING, from, to, 'LIMIT', 0, 1)[1]) or nil
end

-- Return a time, or the deadline if that is earlier.
local function before(deadline_at, at) return NOW < deadline_at and deadline_at < at and deadline_at or at end

-- Add a turn to the queue, see start for `of`. Repeating is harmless. Return whether turns may start now: an owner that
-- takes part had turns that would have started.
local function enqueue(id, of, message)
  local owner = plain(of.owner)
  local place = { who = of.priority .. '|' .. owner, owner = owner,
    priority = of.priority, weight = of.weight, most = of.most, link = of.link, session = of.session,
    deadline_at = of.deadline_at }
  redis.call('ZADD', WAITING, 0, of.place .. '|' .. cjson.encode(place) .. '\n' .. message)
  look().waiting = true
  if not of.is_due then redis.call('ZADD', DUE, before(of.deadline_at, NOW + 64 * ANNOUNCE_MS), id) end
  local time, takes_part = time_of(place)
  if not takes_part then put(place, time) end
  return not takes_part
end

-- When nobody waits any more, all clocks restart.
local function begin_again()
  if not is_empty() then return end
  redis.call('DEL', SHARES, FIRST, SECOND)
  look().background = false
end

-- Remove the turn that waits at a place from the queue.
local function leave(at)
  local place = entry_at(at)
  if not place then return end
  remove(place.at)
  put(place, (time_of(place)))
  begin_again()
end

-- Free the slot that a turn occupies of its owner.
local function leave_place(id, owner)
  owner = plain(owner)
  if redis.call('ZREM', AT_WORK, owner .. '|' .. id) == 0 then return end
  for _, priority in ipairs({ 'interactive', 'background' }) do
    local place = read_entry((first_of(priority .. '|' .. owner)))
    if place then put(place, (time_of(place))) end
  end
end

-- A service has AT_ONCE()[service] slots; nil means any number.
local function at_service(service) return '}' .. plain(service) end
local function waits_at(service, owner, created_at, id)
  return string.format('%s}%s|%015.0f|%s', at_service(service), plain(owner), created_at, id)
end
-- Return how many turns occupy a slot of the service.
local function asking(name) return redis.call('ZLEXCOUNT', AT_WORK, within(name)) end

-- Return whether a turn may call a service now: it has a slot, or a slot is free.
local function has_place(service, id)
  local most, name = AT_ONCE()[service], at_service(service)
  return not most or redis.call('ZSCORE', AT_WORK, name .. '|' .. id) or asking(name) < most
end

-- Give a free slot to a waiting turn, which becomes due: the oldest turn of the next owner, so that owners take turns.
-- Return false if no slot is free or nobody waits.
local function hand_on(service, owner)
  local name, most = at_service(service), AT_ONCE()[service]
  if most and asking(name) >= most then return false end
  local function first(from) return redis.call('ZRANGEBYLEX', AT_WORK, from, '(' .. name .. '~', 'LIMIT', 0, 1)[1] end
  local found = first('(' .. name .. '}' .. plain(owner) .. '}') or first('[' .. name .. '}')
  if not found then return false end
  local id = string.match(found, '[^|]+$')
  redis.call('ZREM', AT_WORK, found)
  redis.call('ZADD', AT_WORK, 0, name .. '|' .. id)
  redis.call('ZADD', DUE, 'XX', NOW, id)
  return true
end

-- Remove a turn from the slots and the waiting list of its service.
local function leave_service(service, owner, created_at, id)
  redis.call('ZREM', AT_WORK, waits_at(service, owner, created_at, id))
  if redis.call('ZREM', AT_WORK, at_service(service) .. '|' .. id) == 1 then hand_on(service, owner) end
end

-- Return the owner whose turn starts next and its time; nil if no turn may start.
local function next_owner()
  local function earliest(owners)
    return redis.call('ZRANGEBYSCORE', owners, 0, '(' .. AWAY, 'WITHSCORES', 'LIMIT', 0, 1)
  end
  local first, second = earliest(FIRST), look().background and earliest(SECOND) or {}
  if first[1] and second[1] then
    if redis.call('HINCRBY', SHARES, 'ahead', 1) < SHARE then return first[1], tonumber(first[2]) end
    redis.call('HDEL', SHARES, 'ahead')
    return second[1], tonumber(second[2])
  end
  local found = first[1] and first or second
  return found[1], tonumber(found[2])
end

local function has_room()
  if QUEUED == 0 then return redis.call('ZCARD', LET_GO) < FAR_AHEAD end
  queued = queued or redis.call('LLEN', QUEUE)
  return queued < AHEAD
end

-- Start one turn, if one may start and the queue has room. Return its entry with its id, or nil.
-- without_message: include turns that the caller has to announce
local function release_one(without_message)
  -- With two servers every turn is announced by its caller.
  if is_empty() or QUEUED == 0 and not without_message or not has_room() then return nil end
  local who, at = next_owner()
  local first, second
  if who then first, second = first_of(who) end
  if not first then
    if who then redis.call('ZREM', FIRST, who) redis.call('ZREM', SECOND, who) end
    return nil
  end
  local place = read_entry(first)
  if not place then
    redis.call('ZREM', WAITING, first)
    look().waiting = nil
    return nil
  end
  place.is_pushed = QUEUED == 1 and place.message ~= ''
  if not place.is_pushed and not without_message then return nil end
  remove(place.at)
  if place.most > 0 then redis.call('ZADD', AT_WORK, 0, place.owner .. '|' .. place.id) end
  schedule(place, at + 1 / place.weight, second, at + TICK)
  begin_again()
  redis.call('ZADD', DUE, before(place.deadline_at, NOW + ANNOUNCE_MS), place.id)
  if QUEUED == 0 then redis.call('ZADD', LET_GO, NOW, place.id) end
  if place.is_pushed then queued = redis.call('LPUSH', QUEUE, place.message) end
  return place
end

-- Called after a command that took a message from the queue or added a turn. Two starts at a time refill the queue.
local function fill_up()
  for _ = 1, 2 do
    if not release_one(false) then return end
  end
end

-- Allow a turn's first run: start it at once if nobody waits, otherwise queue it.
-- of: {place, owner, priority, weight, most, link, session, deadline_at, is_due: due as a turn that waits here}
local function start(id, of, message)
  if message ~= '' and of.most == 0 and is_empty() then
    queued = redis.call('LPUSH', QUEUE, message)
    if queued <= AHEAD then
      if QUEUED == 0 then redis.call('ZADD', LET_GO, NOW, id) end
      return
    end
    queued = queued - 1
    redis.call('LTRIM', QUEUE, 1, -1) -- not LPOP: a relay's user may not pop messages (compose/broker/users.acl)
  end
  if enqueue(id, of, message) then fill_up() end
end
