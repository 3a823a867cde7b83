#!lua
-- Note that a turn is submitted with a policy or template, so that nobody removes it.
-- KEYS[1] policies (hash: hash -> JSON)  KEYS[2] their last submits (sorted set)  ARGV[1] hash  ARGV[2] now in ms
-- answers 1 if the store has the policy, else 0

redis.pcall('ZADD', KEYS[2], ARGV[2], ARGV[1])
return redis.call('HEXISTS', KEYS[1], ARGV[1])
