#!lua flags=no-writes
-- Return the messages (JSON) up to a digest, oldest first, or false if one is missing: see history.lua.
-- KEYS[1] history (hash)  ARGV[1] digest of the last message

local found, digest = {}, ARGV[1]
while string.find(digest, '[^0]') do
  local stored = redis.call('HGET', KEYS[1], digest)
  if not stored then return false end
  found[#found + 1] = string.sub(stored, 33)
  digest = string.sub(stored, 1, 32)
end
for i = 1, math.floor(#found / 2) do found[i], found[#found + 1 - i] = found[#found + 1 - i], found[i] end
return found
