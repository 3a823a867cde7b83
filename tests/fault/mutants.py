"""The guards of the Lua commands, each broken once. The interleaver must notice every one."""

from __future__ import annotations

from tests.fault.scripts import Mutant

MUTANTS = [
    # Who may change a turn
    Mutant(
        "commit takes any token",
        "commit",
        "if turn.token ~= token or turn.state == 'finished' then",
        "if turn.state == 'finished' then",
    ),
    Mutant("append takes any token", "append", "turn.token ~= token", "not turn.state"),
    Mutant("beat takes any token", "beat", "turn.token ~= token", "not turn.state"),
    Mutant("commit compares tokens by order", "commit", "turn.token ~= token or", "turn.token > token or"),
    Mutant(
        "commit forgets that it was done",
        "commit",
        "if turn.last_token == token and nth <= number('last_cmd') then",
        "if false then",
    ),
    Mutant("append runs again when repeated", "append", "if nth <= number('cmd')", "if false"),
    Mutant("append remembers no number", "append", "set('cmd', nth)"),
    Mutant("append overlooks what was forgotten", "append", "nth > number('cmd') + 1", "false"),
    Mutant("commit overlooks what was forgotten", "commit", "nth > number('cmd') + 1", "false"),
    Mutant("append tells of one too many", "append", "return { 'behind', number('cmd') }", "return { 'behind', 0 }"),
    Mutant("commit keeps the token", "commit", "    set('token', '')\n    set('lease_until', 0)\n"),
    Mutant(
        "a repeated commit whose holder went on runs again",
        "commit",
        "if nth <= number('cmd') then return claimed() end",
    ),
    Mutant("a holder goes on under no number", "commit", "set('cmd', nth)"),
    Mutant("a holder goes on before the delay is over", "commit", " and delay_ms <= 0 then", " then"),
    Mutant("a holder goes on without an agent's run", "commit", "state == 'queued' and 'running' or 'v", "'v"),
    Mutant(
        "a holder goes on with what was called off",
        "commit",
        "  if outcome ~= '' then\n    head",
        "  if false then head",
    ),
    Mutant("a repeated claim is another delivery", "claim", "if turn.token == token then", "if false then"),
    Mutant("claim takes what is held", "claim", "if (turn.token or '') ~= '' then", "if false then"),
    Mutant("claim takes any link", "claim", "if turn.next ~= link then", "if false then"),
    Mutant("claim takes a turn that waits for its session", "claim", "if not is_head() then", "if false then"),
    Mutant(
        "claim takes what was called off", "claim", "if called_off(turn.state == 'queued') ~= '' then", "if false then"
    ),
    Mutant("claim takes before the delay is over", "claim", "if number('not_before') > NOW then", "if false then"),
    Mutant(
        "a late claim takes the turn again",
        "claim",
        "if string.find(turn.tokens or '', token, 1, true) then",
        "if false then",
    ),
    Mutant(
        "claim forgets the lease",
        "turn",
        "  look_again(NOW + LEASE_MS)\n  if state",
        "  share('ZREM', DUE, ID)\n  if state",
    ),
    Mutant("claim remembers no link", "turn", "  set('next', link)\n"),
    # Accepting
    Mutant("seal takes any token", "seal", "if turn.token ~= token then", "if not turn.state then"),
    Mutant(
        "seal overrules a cancel",
        "seal",
        "if (turn.stop or '') ~= '' then return { 'stopped'",
        "if false then return { ''",
    ),
    Mutant("seal keeps nothing", "seal", "text('accepted', accepted)"),
    Mutant("seal stops no cancel", "seal", "set('sealed', '1')"),
    Mutant(
        "cancel ends what is being published",
        "cancel",
        "if is_sealed() then return { 'accepted', '' } end",
    ),
    Mutant("the deadline ends what is being published", "turn", "if is_sealed() then return '' end"),
    Mutant("commit keeps what was accepted", "commit", "share('HDEL', TEXTS, 'accepted')"),
    # Reaping
    Mutant("reap takes a lease that holds", "reap", "if number('lease_until') > NOW then", "if false then"),
    Mutant("reap takes though it may not", "reap", "if may_take ~= '1' then", "if false then"),
    Mutant(
        "reap keeps the token",
        "reap",
        "  set('lease_until', 0)\n  set('state', running",
        "  set('token', turn.last_token or 'x')\n  set('state', running",
    ),
    Mutant("reap never gives up", "reap", "number('strikes') >= STRIKES", "false"),
    Mutant("reap does not look again", "reap", "look_again(NOW + ANNOUNCE_MS * 2 ^", "local _ = (2 ^"),
    Mutant("reap does not end what is called off", "reap", "if outcome ~= '' then", "if false then"),
    Mutant("reap announces a turn that waits for its session", "reap", "if not is_head() then", "if false then"),
    Mutant("reap tells nobody of a lost delivery", "reap", "emit('attempt.lost'", "string.format('attempt.lost'"),
    # Ends
    Mutant("the session keeps a finished turn", "turn", "share('LREM', SESSION, 0, ID)"),
    Mutant(
        "a finished turn stays due",
        "turn",
        "share('ZREM', DUE, ID)\n  if turn.state == 'parked'",
        "if turn.state == 'parked'",
    ),
    Mutant(
        "the session's next turn is forgotten",
        "turn",
        "if head ~= '' then share('ZADD'",
        "if false then share('ZADD'",
    ),
    Mutant(
        "a turn that only waited moves the head", "turn", "line[1] == ID and line[2] or ''", "line[2] or line[1] or ''"
    ),
    Mutant("a finished turn never expires", "turn", "and turn.outcome ~= 'dead' then\n", "and false then\n"),
    Mutant("a dead letter expires", "turn", "and turn.outcome ~= 'dead' then\n", "then\n"),
    Mutant("a dropped dead letter stays", "drop", "if redis.call('ZREM', DEAD, ID) == 1 then", "if false then"),
    Mutant("drop takes any turn", "drop", "if turn.outcome ~= 'dead' then", "if false then"),
    Mutant(
        "a worker that does other work may strike last",
        "claim",
        "if alone ~= '1' and number('strikes') >= STRIKES - 1 then",
        "if false then",
    ),
    Mutant("a spent budget runs on", "turn", "if will_run and spent() ~= '' then", "if false then"),
    Mutant("a lost run is not charged", "reap", " + number('token_reserve'))", ")"),
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
        "  outcome = called_off(state == 'queued')\n",
        "  outcome = ''\n",
    ),
    Mutant("cancel ends what is held", "cancel", "if (turn.token or '') ~= '' then", "if false then"),
    Mutant("cancel ends a turn twice", "cancel", "if turn.state == 'finished' then", "if false then"),
    Mutant("nobody looks at the deadline", "turn", "if NOW < deadline and deadline < at then at = deadline end"),
    # Parking and deciding
    Mutant("decide takes any turn", "decide", "if turn.state ~= 'parked' then", "if turn.state == 'finished' then"),
    Mutant("decide takes any owner", "decide", "(owner ~= '' and turn.owner ~= owner)", "false"),
    Mutant(
        "a late decision decides again",
        "decide",
        "if string.find(' ' .. (turn.decided or ''), ' ' .. decision .. ' ', 1, true) then",
        "if false then",
    ),
    Mutant("a decided turn stays in the inbox", "turn", "share('ZREM', INBOX, ID)\n  look_again", "look_again"),
    Mutant("a finished turn stays in the inbox", "turn", "if turn.state == 'parked' then share", "if false then share"),
    Mutant("a parked turn is in no inbox", "commit", "share('ZADD', INBOX, int(NOW), ID)"),
    Mutant("a parked turn's time goes on", "commit", "number('deadline_at') + park_ms", "number('deadline_at')"),
    Mutant("a parked turn is never looked at", "commit", "look_again(NOW + park_ms)", "share('ZREM', DUE, ID)"),
    Mutant("a decided turn has no time left", "turn", "NOW + RESUME_MS", "NOW"),
    Mutant("a decided turn keeps the whole time-out", "turn", "deadline + NOW - number('decide_by')", "deadline"),
    Mutant("nobody is told of a decision", "turn", "emit('turn.decided'", "string.format('turn.decided'"),
    Mutant("a phase's time begins before it does", "submit", "from_claim == '1' and 0 or NOW", "NOW"),
    Mutant("a phase's time never begins", "claim", "if number('deadline_at') == 0 and", "if false and"),
    # Log and counters
    Mutant("an event gets no new number", "turn", "    set('seq', seq)\n"),
    Mutant("an event is not logged", "turn", "redis.call('XADD', LOG, int(seq) .. '-0', 'e', lines)"),
    Mutant("an event is not published", "turn", "redis.call('PUBLISH', BELL, lines)"),
    Mutant(
        "of several events the last is published", "turn", "'PUBLISH', BELL, lines", "'PUBLISH', BELL, events[#events]"
    ),
    Mutant("the end is counted twice", "turn", "'0' }, '|'), 1)\n  if", "'0' }, '|'), 2)\n  if"),
    Mutant("a retried turn is not counted", "turn", "\n    number('retries') > 0 and '1' or '0'", "'0'"),
    Mutant("a recovery is counted twice", "turn", "    set('alive_at', 0)\n"),
    Mutant(
        "a cancelled turn gave up too",
        "commit",
        "count_lines(counters)",
        "count_lines(counters) count_lines(end_counters)",
    ),
    Mutant("a duration lies in the wrong bucket", "turn", "if ms <= bound then", "if ms < bound / 2 then"),
    Mutant(
        "an agent's time begins with the submit",
        "commit",
        "NOW - number('since'), '|' .. works",
        "NOW - number('created_at'), '|' .. works",
    ),
    Mutant("a delivery is not counted", "turn", "number('delivery') + 1)", "number('delivery'))"),
    # Submit
    Mutant("submit stores a turn again", "submit", "if turn.state then return { 'known', 0, ID } end"),
    Mutant(
        "submit forgets the idempotency key",
        "submit",
        "if body ~= '' then share('SET'",
        "if false then share('SET'",
    ),
    Mutant("submit takes another body for the same", "submit", "if hash == body then", "if true then"),
    Mutant("reject is not refused", "submit", "if double_text == 'reject' and position > 0 then", "if false then"),
    Mutant("submit jumps the queue", "submit", "share('RPUSH', SESSION, ID)", "share('LPUSH', SESSION, ID)"),
    Mutant("a waiting turn is not due", "submit", "look_again((position", "local _ = ((position"),
]
