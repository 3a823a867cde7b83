"""The guards of the Lua commands, each broken once. The interleaver must notice every one."""

from __future__ import annotations

from tests.fault.scripts import Mutant

MUTANTS = [
    # Who may change a turn
    Mutant(
        "commit takes any token",
        "commit",
        "if turn.token ~= ARGV[4] or turn.state == 'finished' then",
        "if turn.state == 'finished' then",
    ),
    Mutant("append takes any token", "append", "not EXISTS or turn.token ~= ARGV[4]", "not EXISTS"),
    Mutant("beat takes any token", "beat", "not EXISTS or turn.token ~= ARGV[4]", "not EXISTS"),
    Mutant("commit compares tokens by order", "commit", "turn.token ~= ARGV[4] or", "turn.token > ARGV[4] or"),
    Mutant(
        "commit forgets that it was done",
        "commit",
        "if turn.last_token == ARGV[4] and tonumber(ARGV[5]) <= number('last_cmd') then",
        "if false then",
    ),
    Mutant("append runs again when repeated", "append", "if tonumber(ARGV[5]) <= number('cmd')", "if false"),
    Mutant("append remembers no number", "append", "redis.call('HSET', TURN, 'cmd', ARGV[5])"),
    Mutant("append overlooks what was forgotten", "append", "tonumber(ARGV[5]) > number('cmd') + 1", "false"),
    Mutant("commit overlooks what was forgotten", "commit", "tonumber(ARGV[5]) > number('cmd') + 1", "false"),
    Mutant("append tells of one too many", "append", "return { 'behind', number('cmd') }", "return { 'behind', 0 }"),
    Mutant("commit keeps the token", "commit", "'HSET', TURN, 'token', '', 'lease_until', 0,", "'HSET', TURN,"),
    Mutant(
        "a repeated commit whose holder went on runs again",
        "commit",
        "if tonumber(ARGV[5]) <= number('cmd') then return claimed() end",
    ),
    Mutant("a holder goes on under no number", "commit", "redis.call('HSET', TURN, 'cmd', ARGV[5])"),
    Mutant("a holder goes on before the delay is over", "commit", " and move.delay_ms <= 0"),
    Mutant("a holder goes on without an agent's run", "commit", "move.state == 'queued' and 'running' or 'v", "'v"),
    Mutant(
        "a holder goes on with what was called off",
        "commit",
        "  if outcome ~= '' then\n    head",
        "  if false then head",
    ),
    Mutant("a repeated claim is another delivery", "claim", "if turn.token == ARGV[5] then", "if false then"),
    Mutant("claim takes what is held", "claim", "if (turn.token or '') ~= '' then", "if false then"),
    Mutant("claim takes any link", "claim", "if turn.next ~= ARGV[4] then", "if false then"),
    Mutant("claim takes a turn that waits for its session", "claim", "if not is_head() then", "if false then"),
    Mutant(
        "claim takes what was called off", "claim", "if called_off(turn.state == 'queued') ~= '' then", "if false then"
    ),
    Mutant("claim takes before the delay is over", "claim", "if number('not_before') > NOW then", "if false then"),
    Mutant(
        "a late claim takes the turn again",
        "claim",
        "if string.find(turn.tokens or '', ARGV[5], 1, true) then",
        "if false then",
    ),
    Mutant("claim forgets the lease", "turn", "look_again(NOW + lease_ms)", "redis.call('ZREM', DUE, ID)"),
    Mutant("claim remembers no link", "turn", "'state', state, 'next', link, 'token'", "'state', state, 'token'"),
    # Accepting
    Mutant("seal takes any token", "seal", "if not EXISTS or turn.token ~= ARGV[4] then", "if not EXISTS then"),
    Mutant(
        "seal overrules a cancel",
        "seal",
        "if (turn.stop or '') ~= '' then return { 'stopped'",
        "if false then return { ''",
    ),
    Mutant("seal keeps nothing", "seal", "redis.call('HSET', TURN, 'accepted', ARGV[5])"),
    Mutant(
        "cancel ends what is being published",
        "cancel",
        "if (turn.accepted or '') ~= '' then return { 'accepted', '' } end",
    ),
    Mutant("the deadline ends what is being published", "turn", "if (turn.accepted or '') ~= '' then return '' end"),
    Mutant(
        "commit keeps what was accepted", "commit", "if turn.accepted then redis.call('HDEL', TURN, 'accepted') end"
    ),
    # Reaping
    Mutant("reap takes a lease that holds", "reap", "if number('lease_until') > NOW then", "if false then"),
    Mutant("reap takes though it may not", "reap", "if ARGV[4] ~= '1' then", "if false then"),
    Mutant("reap keeps the token", "reap", "'HSET', TURN, 'token', '', 'lease_until', 0,", "'HSET', TURN,"),
    Mutant("reap never gives up", "reap", "strikes >= tonumber(ARGV[6])", "false"),
    Mutant("reap does not look again", "reap", "look_again(NOW + SETTINGS.announce_ms * 2 ^", "local _ = (2 ^"),
    Mutant("reap does not end what is called off", "reap", "if outcome ~= '' then", "if false then"),
    Mutant("reap announces a turn that waits for its session", "reap", "if not is_head() then", "if false then"),
    Mutant("reap tells nobody of a lost delivery", "reap", "emit('attempt.lost'", "string.format('attempt.lost'"),
    # Ends
    Mutant("the session keeps a finished turn", "turn", "redis.call('LREM', SESSION, 0, ID)"),
    Mutant(
        "a finished turn stays due",
        "turn",
        "redis.call('ZREM', DUE, ID)\n  redis.call('ZREM', INBOX",
        "redis.call('ZREM', INBOX",
    ),
    Mutant(
        "the session's next turn is forgotten",
        "turn",
        "if head ~= '' then redis.call('ZADD'",
        "if false then redis.call('ZADD'",
    ),
    Mutant("a turn that only waited moves the head", "turn", "local head = led and ", "local head = "),
    Mutant("a finished turn never expires", "turn", "if outcome ~= 'dead' then\n", "if false then\n"),
    Mutant("a dead letter expires", "turn", "if outcome ~= 'dead' then\n", "if true then\n"),
    Mutant("a dropped dead letter stays", "drop", "if redis.call('ZREM', DEAD, ID) == 1 then", "if false then"),
    Mutant("drop takes any turn", "drop", "if turn.outcome ~= 'dead' then", "if false then"),
    Mutant(
        "a worker that does other work may strike last",
        "claim",
        "if ARGV[8] ~= '1' and number('strikes') >= tonumber(ARGV[9]) - 1 then",
        "if false then",
    ),
    Mutant("a spent budget runs on", "turn", "if will_run and spent() ~= '' then", "if false then"),
    Mutant("a lost run is not charged", "reap", "'tokens_used', number('token_reserve')", "'tokens_used', 0"),
    Mutant("an interrupt waits", "reap", "if turn.double_text == 'interrupt' then", "if false then"),
    Mutant(
        "an accepted cancel is forgotten",
        "commit",
        "if (turn.stop or '') ~= '' and outcome ~= turn.stop then",
        "if false then",
    ),
    Mutant(
        "commit overlooks the deadline",
        "commit",
        "  outcome = called_off(move.state == 'queued')\n",
        "  outcome = ''\n",
    ),
    Mutant("cancel ends what is held", "cancel", "if (turn.token or '') ~= '' then", "if false then"),
    Mutant("cancel ends a turn twice", "cancel", "if turn.state == 'finished' then", "if false then"),
    Mutant("nobody looks at the deadline", "turn", "if NOW < deadline and deadline < at then at = deadline end"),
    # Parking and deciding
    Mutant("decide takes any turn", "decide", "if turn.state ~= 'parked' then", "if turn.state == 'finished' then"),
    Mutant("decide takes any owner", "decide", "(ARGV[4] ~= '' and turn.owner ~= ARGV[4])", "false"),
    Mutant(
        "a late decision decides again",
        "decide",
        "if string.find(' ' .. (turn.decided or ''), ' ' .. ARGV[5] .. ' ', 1, true) then",
        "if false then",
    ),
    Mutant("a decided turn stays in the inbox", "turn", "redis.call('ZREM', INBOX, ID)\n  look_again", "look_again"),
    Mutant("a finished turn stays in the inbox", "turn", "redis.call('ZREM', INBOX, ID)\n  -- One", "-- One"),
    Mutant("a parked turn is in no inbox", "commit", "redis.call('ZADD', INBOX, int(NOW), ID)"),
    Mutant("a parked turn's time goes on", "commit", "deadline + move.park_ms or 0", "deadline or 0"),
    Mutant(
        "a parked turn is never looked at", "commit", "look_again(NOW + move.park_ms)", "redis.call('ZREM', DUE, ID)"
    ),
    Mutant("a decided turn has no time left", "turn", "NOW + SETTINGS.resume_ms", "NOW"),
    Mutant("a decided turn keeps the whole time-out", "turn", "deadline + NOW - number('decide_by')", "deadline"),
    Mutant("nobody is told of a decision", "turn", "emit('turn.decided'", "string.format('turn.decided'"),
    Mutant("a phase's time begins before it does", "submit", "ARGV[21] == '1' and 0 or NOW", "NOW"),
    Mutant("a phase's time never begins", "claim", "if number('deadline_at') == 0 and", "if false and"),
    # Log and counters
    Mutant("an event gets no new number", "turn", "redis.call('HSET', TURN, 'seq', int(seq))"),
    Mutant("an event is not logged", "turn", "redis.call('XADD', LOG, int(seq) .. '-0', 'e', wire)"),
    Mutant("an event is not published", "turn", "redis.call('PUBLISH', BELL, wire)"),
    Mutant("the end is counted twice", "turn", "'0' }, '|')] = 1", "'0' }, '|')] = 2"),
    Mutant("a retried turn is not counted", "turn", "number('retries') > 0 and '1' or '0'", "'0'"),
    Mutant("a recovery is counted twice", "turn", "'since', int(NOW), 'alive_at', 0", "'since', int(NOW)"),
    Mutant(
        "a cancelled turn gave up too",
        "commit",
        "if move.judged then",
        "for name, by in pairs(move.end_counters) do counters[name] = by end if move.judged then",
    ),
    Mutant("a duration lies in the wrong bucket", "turn", "if ms <= bound then", "if ms < bound / 2 then"),
    Mutant(
        "an agent's time begins with the submit",
        "commit",
        "NOW - number('since'), '|' .. WORKS",
        "NOW - number('created_at'), '|' .. WORKS",
    ),
    Mutant(
        "the day is not counted",
        "turn",
        "for i = 1, 3 do new[i]",
        "for i = 1, 2 do new[i]",
    ),
    Mutant("a delivery is not counted", "turn", "redis.call('HINCRBY', TURN, 'delivery', 1)", "number('delivery')"),
    # Submit
    Mutant("submit stores a turn again", "submit", "if EXISTS then return { 'known', 0, ID } end"),
    Mutant(
        "submit forgets the idempotency key",
        "submit",
        "if body ~= '' then redis.call('SET'",
        "if false then redis.call('SET'",
    ),
    Mutant("submit takes another body for the same", "submit", "if hash == body then", "if true then"),
    Mutant("reject is not refused", "submit", "if ARGV[9] == 'reject' and position > 0 then", "if false then"),
    Mutant("submit jumps the queue", "submit", "redis.call('RPUSH', SESSION, ID)", "redis.call('LPUSH', SESSION, ID)"),
    Mutant("a waiting turn is not due", "submit", "look_again((position", "local _ = ((position"),
]
