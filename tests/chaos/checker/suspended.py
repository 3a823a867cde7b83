"""Invariant 18: a suspended turn holds nothing: no agent of it runs, and others start as if it were not there."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.checker.facts import FINISHED, Facts, Problem, TurnFacts
from tests.chaos.checker.recovery import HARMLESS, RESTART_SECONDS, bound, poison_times

_OVER = {"turn.decided", FINISHED}
_RUN_OVER = {"attempt.completed", "attempt.lost", FINISHED}


class Span(NamedTuple):
    """A time of a turn, in seconds since the epoch."""

    turn: TurnFacts
    begin: float
    end: float


def _spans(facts: Facts, opens: str, closes: set[str]) -> list[Span]:
    found: list[Span] = []
    for turn in facts.turns.values():
        begin = 0.0
        for event in turn.log:
            if begin and event["kind"] in closes:
                found.append(Span(turn, begin, event["at"] / 1000))
                begin = 0.0
            if event["kind"] == opens:
                begin = event["at"] / 1000
    return found


def suspensions(facts: Facts) -> list[Span]:
    """When turns lay in the inbox."""
    return _spans(facts, "turn.suspended", _OVER)


def waits(facts: Facts) -> list[Span]:
    """From when each turn could have started (it was stored, and its session free) until it did."""
    sessions: dict[str, list[TurnFacts]] = defaultdict(list)
    for turn in facts.turns.values():
        sessions[turn.session].append(turn)
    found = []
    for turns in sessions.values():
        ends = [event["at"] for turn in turns for event in turn.log if event["kind"] == FINISHED]
        for turn in turns:
            started = next((event["at"] for event in turn.log if event["kind"] == "attempt.started"), 0)
            if started:
                free = max([turn.log[0]["at"], *(end for end in ends if end <= started)])
                found.append(Span(turn, free / 1000, started / 1000))
    return found


def suspended_hold_nothing(facts: Facts) -> Iterator[Problem]:
    """No process of a suspended turn; no turn that waits beside one for longer than a recovery takes, without a reason.

    Reasons are a fault that holds up workers, and slots that are really taken: as many agents run as one worker may.
    """
    suspended = suspensions(facts)
    grace = facts.setting("kill_grace_seconds", 5.0) + 1.0
    for span in suspended:
        for line in facts.by["alive"]:
            mine = [mark for mark in line["marks"] if mark.startswith(span.turn.turn)]
            looked: float = line.get("looked") or line["wall"]  # a look lasts long where the machine stands still
            if mine and span.begin + grace < looked < span.end:
                yield Problem(18, "suspended_at_work", f"{span.turn.turn} is suspended, and {mine[0]} runs")
    runs = _spans(facts, "attempt.started", _RUN_OVER)
    slots = facts.setting("run_slots", 16)
    for wait in waits(facts):
        beside = [span for span in suspended if span.turn.session != wait.turn.session and _overlap(span, wait)]
        if not beside or wait.end - wait.begin <= bound(facts) or _disturbed(facts, wait):
            continue
        if sum(_overlap(run, wait) for run in runs) < slots:
            text = f"{wait.turn.turn} waited {wait.end - wait.begin:.1f} s beside the suspended {beside[0].turn.turn}"
            yield Problem(18, "blocked_by_suspended", text)


def _overlap(one: Span, other: Span) -> bool:
    return one.begin < other.end and other.begin < one.end


def _disturbed(facts: Facts, wait: Span) -> bool:
    begin = wait.begin - facts.setting("lease_seconds", 6.0) - RESTART_SECONDS
    faults = (f for f in facts.faults if f.kind not in HARMLESS)
    return any(f.begin < wait.end and (f.end or wait.end) > begin for f in faults) or any(
        begin < at < wait.end for at in poison_times(facts)
    )
