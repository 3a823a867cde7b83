-- Earlier messages of the turns of a session, each stored once: a chat sends its whole conversation with every message.
-- Follows fair_queue.lua.
--
-- Fields of HISTORY
--   DIGEST   a message (JSON) behind the digest of the message before it (zeros: there is none). A digest covers all
--            messages up to its own: turns of one conversation share fields, and an edited message begins a branch.
--            With a message, all before it are stored.
--   @TURN    the digest of the last message before the turn's own, and when the turn ended, if it has
--   open     number of turns that have not ended; a dead letter counts until somebody drops it
--   swept    when messages that no turn needs any more were last removed
-- The key expires with the last of its turns. Meanwhile it is swept at a submit and by `turns data gc`.

local DIGEST = 32

-- Remove the messages of turns that have expired, unless others need them. Costs as much as there are messages.
local function sweep_history()
  local stored, before, heads, gone, is_open, last = redis.call('HGETALL', HISTORY), {}, {}, {}, false, 0
  for i = 1, #stored, 2 do
    local name, value = stored[i], stored[i + 1]
    if string.sub(name, 1, 1) == '@' then
      local ended = tonumber(string.sub(value, DIGEST + 2))
      if ended and ended + RETENTION_MS <= NOW then
        gone[#gone + 1] = name
      else
        heads[#heads + 1] = string.sub(value, 1, DIGEST)
        is_open = is_open or not ended
        last = math.max(last, ended or 0)
      end
    elseif #name == DIGEST then
      before[name] = string.sub(value, 1, DIGEST)
    end
  end
  local needed = {}
  for _, digest in ipairs(heads) do
    while before[digest] and not needed[digest] do
      needed[digest] = true
      digest = before[digest]
    end
  end
  for digest in pairs(before) do
    if not needed[digest] then gone[#gone + 1] = digest end
  end
  for i = 1, #gone, 1000 do redis.call('HDEL', HISTORY, unpack(gone, i, math.min(i + 999, #gone))) end
  redis.call('HSET', HISTORY, 'swept', NOW)
  if not is_open then redis.call('PEXPIREAT', HISTORY, last + RETENTION_MS, 'LT') end
end

-- Store the messages before a new turn's own. head: the digest of the last one
-- from: where they begin in ARGV, newest first: digest, value, ...
local function keep_history(head, from)
  local missing = {}
  for i = from, #ARGV, 2 do
    if redis.call('HEXISTS', HISTORY, ARGV[i]) == 1 then break end
    missing[#missing + 1] = ARGV[i]
    missing[#missing + 1] = ARGV[i + 1]
  end
  for i = 1, #missing, 1000 do share('HSET', HISTORY, unpack(missing, i, math.min(i + 999, #missing))) end
  share('HSET', HISTORY, '@' .. ID, head)
  share('HINCRBY', HISTORY, 'open', 1)
  share('PERSIST', HISTORY)
  set('history', head)
  local swept = tonumber(redis.call('HGET', HISTORY, 'swept') or '0') or 0
  if swept + RETENTION_MS / 8 < NOW then after(sweep_history) end
end

-- Note that the turn has ended: its messages are needed as long as its record.
local function leave_history()
  if (turn.history or '') == '' then return end
  share('HSET', HISTORY, '@' .. ID, turn.history .. ' ' .. NOW)
  share('HINCRBY', HISTORY, 'open', -1)
  after(function()
    if (tonumber(redis.call('HGET', HISTORY, 'open')) or 0) <= 0 then redis.call('PEXPIRE', HISTORY, RETENTION_MS) end
  end)
end
