"""The rules that hold in any order of events, judged from replies and stored data alone, without a model.

Numbers in brackets are the invariants of the design's fault facts: 1 at most one end, 2 nothing follows it, 3 no loss,
4 no invention, 6 one accepted commit per claim, 7 a late worker never commits, 8 session order, 9 counters, 11 log.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.events import Body, data_of
from api_client.store.commands import RESUME_SECONDS
from tests.fault.decisions import read_commit
from tests.fault.scripts import ANNOUNCE_MS, LEASE_MS, STRIKES, told_by
from tests.fault.seen import PretendTurn, Seen

RESUME_MS = int(RESUME_SECONDS * 1000)
_LONGEST_WAIT_MS = 64 * ANNOUNCE_MS


class Violation(AssertionError):
    """Raised when a rule is broken; the text says which one."""


def rule(holds: Any, text: str) -> None:
    """Raise ``Violation`` with this text unless the condition holds."""
    if not holds:
        raise Violation(text)


class Step(NamedTuple):
    """One executed command: its arguments, its reply, and the turn before and after it."""

    name: str
    now: int
    turn: PretendTurn
    args: tuple[Any, ...]
    reply: list[Any]
    before: Seen
    after: Seen


def off(step: Step, state: bytes | None, used: int) -> bytes:
    """Return the outcome with which a turn must end in this step, or nothing; ``used`` is in tokens."""
    if step.before.accepted:
        return b""
    spent = state == b"queued" and 0 < step.before.token_limit <= used
    late = 0 < step.turn.deadline <= step.now
    return step.before.stop or (b"expired" if late or spent else b"")


def unchanged(step: Step) -> None:
    rule(step.after.record == step.before.record, "a command that was refused or repeated changed the record")
    rule(step.after.line == step.before.line, "a command that was refused or repeated changed the session")


def tell(turn: PretendTurn, kind: str, data: str = "") -> None:
    """Add an event to those that the log must contain; without data, the store builds the event."""
    turn.told.append((kind, data))


def advanced(step: Step, head: bytes, outcome: bytes) -> None:
    """Check that the turn ended in this step and not before, left every queue, and that its session continues."""
    turn, before, after = step.turn, step.before, step.after
    rule(after.state == b"finished" and after.outcome == outcome, "[1] the outcome told is not the outcome stored")
    rule(before.state != b"finished", "[1] it ended twice")
    tell(turn, "turn.finished")
    was_head = before.line[:1] == [turn.id]
    rule(head == (after.line[0] if was_head and after.line else b""), "[8] the wrong turn was named as the next")
    if head:
        rule(head in after.due, "the next turn of the session is not due")
        rule(
            after.due[head] <= min(before.due[head], step.now + ANNOUNCE_MS),
            "the next turn of the session is looked at too late",
        )


def submitted(step: Step) -> None:
    said, _, other = step.reply
    turn = step.turn
    if said != b"stored":
        unchanged(step)
        rule(said != b"known" or step.before.state is not None, "[4] known, but nothing is stored")
        if said == b"busy":
            rule(step.args[5] == "reject" and step.before.line[:1] == [other], "refused as busy, but it is not")
        return
    rule(step.before.state is None, "[4] a turn was stored twice")
    rule(step.args[5] != "reject" or not step.before.line, "stored although the session was busy")
    rule(step.reply[1] == len(step.before.line), "told a wrong position")
    turn.stored, turn.epoch = True, step.args[1]
    turn.deadline = 0 if step.args[16] else step.now + step.args[4]
    tell(turn, "turn.queued")


def claimed(step: Step) -> None:
    link, token = step.args[0].encode(), step.args[1].encode()
    turn, before = step.turn, step.before
    accepted = step.reply[0] == b"claimed"
    if before.token == token:
        rule(accepted, "a repeated claim did not find itself")
        unchanged(step)
        return
    free = before.state not in {None, b"finished"} and not before.token
    legal = free and before.next == link and before.line[:1] == [turn.id] and before.not_before <= step.now
    legal = legal and not off(step, before.state, before.tokens_used) and token not in turn.tokens
    legal = legal and (step.args[3] == 1 or before.strikes < STRIKES - 1)
    rule(not accepted or legal, "[7, 8] a claim was accepted that must be refused")
    rule(accepted or not legal, "a claim was refused that must be accepted")
    if not accepted:
        unchanged(step)
        return
    turn.tokens.add(token)
    turn.alone, turn.cmd = step.args[3] == 1, 0
    turn.deadline = turn.deadline or step.now + turn.submit[4]
    begun(step, link, token)


def told_record(step: Step) -> None:
    """Check that the reply tells a holder that continues every field that it does not know."""
    told = told_by(step.reply)
    if step.reply[0] == b"claimed":
        rule(told.get(b"id") == step.turn.id, "a repeated command is told a part of the record")
    before, after = dict(_stored(step.before)), dict(_stored(step.after))
    unknown = after if step.reply[0] == b"claimed" else {n: v for n, v in after.items() if v != before[n]}
    wrong = [name for name, value in unknown.items() if (told.get(name.encode()) or b"0") != (value or b"0")]
    rule(not wrong, f"a holder that goes on was not told {', '.join(wrong)}")


def _stored(look: Seen) -> Iterator[tuple[str, bytes]]:
    """Yield the stored fields of a record on which a holder's decisions depend."""
    for name in ("state", "next", "seq", "lease_until", "not_before", "stop", "strikes", "delivery", "tokens_used"):
        value = getattr(look, name)
        yield name, value if isinstance(value, bytes) else b"%d" % value


def begun(step: Step, link: bytes, token: bytes) -> None:
    """Check that the holder of this token has this task and a whole lease; a run counts as one delivery."""
    turn, before, after = step.turn, step.before, step.after
    rule(after.token == token and after.lease_until == step.now + LEASE_MS, "a claim did not take the lease")
    rule(after.next == link, "a claim took another link")
    runs = link.startswith((b"turn.run/", b"turn.retry/", b"phase.run/"))
    rule(after.delivery == before.delivery + runs, "[6] a claim is not one delivery")
    if runs:
        tell(turn, "attempt.started")


def beaten(step: Step) -> None:
    held = step.before.token == step.args[0].encode()
    rule((step.reply[0] == b"held") == held, "[7] a beat was answered to the wrong one")
    unchanged(step)
    rule(step.after.lease_until == (step.now + LEASE_MS if held else step.before.lease_until), "a beat kept no lease")
    rule(step.reply[1] == (step.before.stop if held else b""), "a beat did not tell of the cancel")


def appended(step: Step) -> None:
    token, number = step.args[0].encode(), step.args[1]
    held = step.before.token == token
    rule((step.reply[0] != b"fenced") == held, "[7] an append was answered to the wrong one")
    rule(step.reply[0] != b"done" or step.reply[1] == step.after.seq, "an append told a wrong length")
    if not held or _behind(step, number) or number <= step.turn.cmd:
        unchanged(step)
        return
    step.turn.appends.append((step.turn.cmd, step.before.seq))
    step.turn.cmd = number
    for i in range(2, len(step.args), 2):
        tell(step.turn, step.args[i], step.args[i + 1])


def _behind(step: Step, number: int) -> bool:
    """Return True if the store lacks an earlier command of the holder, after checking that the reply says so."""
    behind = number > step.turn.cmd + 1
    said = step.reply[:2] == [b"behind", step.turn.cmd]
    rule(said == behind, "[12] a command was done though one before it is missing, or refused though none is")
    return behind


def told_whole(turn: PretendTurn, told: list[Body] | None, goes_on: bool) -> None:
    """Check that a committed run has all its output in the log, in order and once, whatever the store forgot.

    ``goes_on`` says that the holder has begun the next task already, maybe another run.
    """
    if told is None:
        return
    starts = [at for at, (kind, _) in enumerate(turn.told) if kind == "attempt.started"]
    again = goes_on and turn.told[-1][0] == "attempt.started"
    logged = [json.loads(data) for kind, data in turn.told[starts[-2 if again else -1] :] if kind == "attempt.output"]
    said = [data_of(body) for body in told if isinstance(body, AttemptOutput)]
    rule(logged == said, "[12] the log of a committed run has a hole, or something twice")


def sealed(step: Step) -> None:
    before, after, [said] = step.before, step.after, step.reply
    held = before.token == step.args[0].encode()
    rule(
        said == (b"fenced" if not held else b"stopped" if before.stop else b"sealed"), "[7] a seal was answered wrongly"
    )
    if said != b"sealed":
        unchanged(step)
        return
    rule(after.accepted == step.args[2].encode(), "an accepted answer was not kept")
    rule((after.token, after.seq) == (before.token, before.seq), "a seal did more")
    rule(after.state == b"validating", "a sealed answer is not seen as judged")


def committed(step: Step) -> None:
    token, number, keep, move = step.args[0].encode(), step.args[1], step.args[2], read_commit(step.args[4:])
    turn, before, after = step.turn, step.before, step.after
    if turn.last_commit and turn.last_commit[0] == token and number <= turn.last_commit[1]:
        unchanged(step)
        rule(step.reply == turn.last_commit[2], "a repeated commit was answered differently")
        return
    accepted = step.reply[0] != b"fenced"
    rule(
        accepted == (before.token == token), "[6, 7] a commit was accepted from another than the holder, or refused him"
    )
    if not accepted or _behind(step, number):
        unchanged(step)
        return
    if number <= turn.cmd:
        unchanged(step)
        rule(step.reply[0] == b"claimed", "a repeated commit whose holder went on was answered differently")
        told_record(step)
        return
    for kind, data in zip(move.events[::2], move.events[1::2], strict=True):
        tell(turn, kind, data)
    outcome = before.stop or move.outcome.encode() or off(step, move.state.encode(), after.tokens_used)
    rule(not after.accepted, "a commit kept what was accepted before it")
    if keep and move.next and not (outcome or move.delay_ms or move.suspend_ms):
        rule(step.reply[0] == b"continued", "a holder that can go on was sent away")
        told_record(step)
        turn.cmd = number
        begun(step, move.next.encode(), token)
        return
    rule(step.reply[0] == b"done", "a holder goes on that cannot")
    turn.last_commit = (token, number, step.reply)
    rule(step.reply[2] == outcome, "a commit led to another outcome than it must")
    rule(after.token == b"" and after.lease_until == 0, "a commit kept the lease")
    if outcome:
        advanced(step, step.reply[1], outcome)
        return
    rule(after.next == move.next.encode() and after.state == move.state.encode(), "a commit went elsewhere")
    rule(after.not_before == (step.now + move.delay_ms if move.delay_ms else 0), "a wrong delay was stored")
    if move.suspend_ms:
        turn.deadline += move.suspend_ms
        turn.decide_by = step.now + move.suspend_ms


def decided(step: Step) -> None:
    said, link = step.reply
    turn, before = step.turn, step.before
    owner, decision, kind = step.args[:3]
    if before.state is None or owner not in {"", turn.submit[2]}:
        rule(said == b"missing", "a decision found a turn that is not its owner's")
    elif decision in turn.decisions:
        rule(said == b"known" and link == before.next, "a repeated decision was not known")
    else:
        waits = before.state == b"suspended" and step.args[-1] == before.suspended_at
        rule((said == b"decided") == waits, "a decision on a turn that waits for none, or none")
    if said != b"decided":
        unchanged(step)
        return
    turn.decisions.add(decision)
    resumed(step, kind)
    rule(step.after.next == link, "a decision told another link than the next")


def resumed(step: Step, kind: str) -> None:
    """Check that the turn left the inbox in this step with enough time left."""
    turn, after = step.turn, step.after
    rule(after.state == b"ran" and after.next.startswith(b"turn.resume/"), "a decided turn does not go on")
    rule(after.due.get(turn.id, 0) <= step.now + ANNOUNCE_MS, "a decided turn is looked at too late")
    turn.deadline = step.now + max(turn.deadline - turn.decide_by, RESUME_MS)
    turn.decide_by = 0
    turn.kinds.append(kind)
    tell(turn, "turn.decided")


def reaped(step: Step) -> None:
    what, link, session, head, outcome = step.reply
    turn, before, after = step.turn, step.before, step.after
    taken = before.token != b"" and after.token != before.token
    if taken:
        rule(before.lease_until <= step.now and step.args[0] == 1, "[7] a reaper took a lease that holds")
        rule(after.strikes == before.strikes + 1, "a lost delivery is not one strike")
        charged = turn.submit[11] if before.state == b"running" else 0
        rule(after.tokens_used == before.tokens_used + charged, "[16] a lost run is not charged what was set aside")
        tell(turn, "attempt.lost")
    if before.state == b"suspended" and what == b"announce":
        rule(before.due[turn.id] <= step.now and turn.decide_by <= step.now, "a time-out decided before its time")
        resumed(step, "reject")
        rule(link == after.next, "announced another link than the next")
        return
    called_off = off(step, b"queued" if taken and before.state == b"running" else before.state, after.tokens_used)
    poisoned = taken and after.strikes >= STRIKES and turn.alone
    if what == b"finished":
        right = outcome == called_off if called_off else poisoned and outcome == b"dead"
        rule(right or (poisoned and outcome == b"dead" and not before.stop), "a reaper ended a turn that goes on")
        advanced(step, head, outcome)
        return
    rule(not poisoned, "[16] a turn that kills its workers goes on")
    rule(not taken or what == b"announce", "a turn was taken from its worker and not announced")
    if before.due.get(turn.id, step.now + 1) <= step.now:
        lapsed = before.token and before.lease_until <= step.now and step.args[0] == 1
        rule(taken or not lapsed, "[14] a lapsed lease was left alone")
        rule(before.token or not called_off, "a turn that was called off was not ended")
        suspended = before.state == b"suspended" and turn.decide_by > step.now
        ready = not suspended and not before.token and before.line[:1] == [turn.id] and before.not_before <= step.now
        rule(what == b"announce" or not ready, "[3] a turn nobody has was not announced")
    if not taken:
        unchanged(step)
    rule(not head or what == b"interrupt", "a reaper named a next turn though this one goes on")
    if what == b"interrupt":
        rule(
            turn.submit[5] == "interrupt" and before.line[:1] == [head] != [turn.id], "interrupted without being asked"
        )
    rule(what == b"later" or after.due.get(turn.id, step.now + 1) > step.now, "looked at, and due again at once")
    if what == b"announce":
        rule(after.line[:1] == [turn.id] and not after.token and not called_off, "announced what cannot be claimed")
        rule(link == before.next and session == turn.session_id.encode(), "announced another link than the next")
        rule(before.not_before <= step.now, "announced too early")


def cancelled(step: Step) -> None:
    said, head = step.reply
    before, after = step.before, step.after
    foreign = before.state is None or step.args[0] != step.turn.submit[2]
    rule((said == b"missing") == foreign, "a cancel found a turn that is not its owner's, or did not find its own")
    if foreign or before.state == b"finished":
        unchanged(step)
    elif before.accepted:
        rule(said == b"accepted", "a cancel was accepted while the answer was being published")
        unchanged(step)
    elif said == b"stopping":
        rule(before.token != b"" and after.stop == b"cancelled", "a cancel was not kept")
        if not before.stop:
            tell(step.turn, "turn.stopping")
    else:
        rule(before.token == b"", "[7] a cancel ended a turn that is held")
        advanced(step, head, b"cancelled")


def dropped(step: Step) -> None:
    unchanged(step)
    foreign = step.before.state is None or step.args[0] != step.turn.submit[2]
    said = b"missing" if foreign else b"dropped" if step.before.outcome == b"dead" else b"alive"
    rule(step.reply == [said], "a dead letter was dropped that is none or somebody else's, or kept")
    step.turn.dropped |= said == b"dropped"


_OF_COMMAND = {
    "submit": submitted,
    "claim": claimed,
    "beat": beaten,
    "append": appended,
    "seal": sealed,
    "commit": committed,
    "reap": reaped,
    "cancel": cancelled,
    "drop": dropped,
    "decide": decided,
}
_TAKES = {"claim", "commit", "reap"}


def judge(step: Step, line: list[bytes], latest: int) -> None:
    """Judge one step; ``line`` has the session's unfinished turns in order, as they were before the step."""
    turn, before, after = step.turn, step.before, step.after
    if before.state == b"finished":
        rule(after.record == before.record, "[2] something followed the end")
    if after.token != before.token:
        rule(
            step.name in _TAKES and b"" in {before.token, after.token}, "a lease changed hands behind its holder's back"
        )
    rule(after.outcome == before.outcome or after.state == b"finished", "an outcome without an end")
    rule(after.stop in {before.stop, b"cancelled"}, "a cancel was forgotten")
    if before.accepted and _ended(after):
        rule(after.outcome.startswith(b"passed") or after.outcome == b"dead", "a published answer did not count")
    appended_before = list(turn.appends)
    _OF_COMMAND[step.name](step)
    if turn.appends == appended_before and (after.record != before.record or after.accepted != before.accepted):
        turn.appends.clear()
    rule((turn.id in after.inbox) == (after.state == b"suspended"), "the inbox is not the suspended turns")
    rule(int(after.others[6] or 0) == turn.deadline or not turn.stored, "another deadline is stored than there is")
    others_untouched(step)
    rule(after.seq == len(turn.told), "[11] events are missing, doubled or invented")
    rule(after.length <= after.seq and after.top == b"%d-0" % after.seq, "[11] the log has another length than its seq")
    stored = step.name == "submit" and step.reply[0] == b"stored"
    expected = [*line, turn.id] if stored else [other for other in line if other != turn.id or not _ended(after)]
    rule(after.line == expected, "[8, 11] the session's line is not its unfinished turns in their order")
    if after.state is None:
        rule(turn.id not in after.due, "something is due that does not exist")
    elif _ended(after):
        rule(turn.id not in after.due and not after.token, "[11] a finished turn is still due or held")
        stays = after.outcome == b"dead" and not turn.dropped
        rule(all(life == -2 or (life < 0) == stays for life in after.lives), "a finished turn's key never expires")
    else:
        rule(all(life < 0 for life in after.lives), "a live turn's key expires")
        rule(turn.id in after.due, "[3] an unfinished turn is not due")
        rule(after.due[turn.id] <= latest_look(turn, after, latest), "[14] a turn is looked at too late")


def others_untouched(step: Step) -> None:
    """Check that no command changed the due time of another turn, except of the session's new first turn."""
    for member, score in step.before.due.items():
        if member != step.turn.id and step.after.due.get(member) != score:
            ended = _ended(step.after) and not _ended(step.before)
            next_one = step.before.line[:1] == [step.turn.id] and step.after.line[:1] == [member]
            rule(ended and next_one, "[14] a command moved the time at which another turn is looked at")


def _ended(look: Seen) -> bool:
    return look.state == b"finished"


def latest_look(turn: PretendTurn, look: Seen, latest: int) -> int:
    """Return the latest time at which an unfinished turn must be looked at; ``latest`` is the highest clock so far."""
    if look.token:
        return look.lease_until
    if look.state == b"suspended":
        return max(latest, turn.decide_by)
    if not turn.deadline:
        return latest + _LONGEST_WAIT_MS
    if look.line[:1] != [turn.id]:
        interrupts = turn.submit[5] == "interrupt"
        return max(latest, min(turn.deadline, latest + ANNOUNCE_MS) if interrupts else turn.deadline)
    soonest = max(look.not_before, latest + _LONGEST_WAIT_MS)
    return max(latest, soonest if look.accepted else min(turn.deadline, soonest))
