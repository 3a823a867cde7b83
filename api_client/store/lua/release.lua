-- Start as many queued turns as there is room for, and free slots of finished turns. Follows fair_queue.lua.
-- KEYS as of every command, of which 6 and 14 to 20 are used
-- ARGV[1] list names of AT_WORK behind this name  ARGV[2...] names to free
-- answers {names of AT_WORK, {id, link, session id, ...} of turns for the caller to announce}

for i = 2, #ARGV do
  local owner, id = string.match(ARGV[i], '^(.*)|([^|]*)$')
  if string.sub(owner, 1, 1) == '}' then redis.call('ZREM', AT_WORK, ARGV[i]) else leave_place(id, owner) end
end
for service in pairs(AT_ONCE()) do
  repeat until not hand_on(service, '')
end
local left = {}
for _ = 1, 100 do
  local place = release_one(true)
  if not place then break end
  if not place.is_pushed then
    left[#left + 1] = place.id
    left[#left + 1] = place.link
    left[#left + 1] = place.session
  end
end
return { redis.call('ZRANGEBYLEX', AT_WORK, '(' .. ARGV[1], '+', 'LIMIT', 0, 100), left }
