"""Invariant 14: how long lost turns waited for another worker, and that none outlived its deadline.

Judged from outside: a delivery that a fault lost, and the next ``attempt.started`` of its turn. Where one worker was
killed *alone*, with nothing else that holds up workers or the broker from one lease before to the claim, the clock
starts at the kill. Where faults *overlap*, the clock of the bound starts at the end of the last one that hit: each may
cost the turn another lease.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.checker.facts import FINISHED, Facts, Fault, Line, Problem, TurnFacts

#: Faults that hold up no turn on another worker.
HARMLESS = {"kill agent", "freeze agent", "kill relay", "freeze relay", "cut client"}
#: Faults whose victims ran agents, and whose recovery is measured where they are alone.
_OF_WORKERS = {"kill engine", "kill worker"}
#: A killed worker is back, and its reaper awake, one lease and this many seconds later.
RESTART_SECONDS = 4.0
_LATE_SECONDS = 5.0
#: What ``attempt.lost`` says of a run that its worker could not keep: each further one waits longer (docs, Runs).
_NOT_KEPT = {"fenced", "guard died", "stopped", "killed"}
_LONGEST_HAND_OVER = 60.0
#: So much longer a turn is left to other machines, when its agent was killed on this one.
_ELSEWHERE_SECONDS = 5.0


class Recovery(NamedTuple):
    """One lost delivery and the next claim of its turn; all times in seconds.

    Attributes:
        alone: one worker was killed, and nothing else happened.
        waited: from the first fault that hit the delivery to the claim.
        undisturbed: of these, after the end of the last fault; what a hand-over waits by design is left out.
        excused: for how long of these the machine itself stood still.
    """

    turn: str
    alone: bool
    waited: float
    undisturbed: float
    excused: float


def recoveries(facts: Facts) -> list[Recovery]:
    """Every delivery of a running agent that a fault lost, and that was followed by another one."""
    disturbing = [fault for fault in facts.faults if fault.kind not in HARMLESS]
    disturbing += [Fault("", "poison", at, at, ()) for at in poison_times(facts)]
    settle = facts.setting("lease_seconds", 6.0) + RESTART_SECONDS
    return [
        found
        for turn in facts.turns.values()
        for lost in _lost(turn)
        if (found := _recovery(facts, lost, disturbing, settle))
    ]


class _Lost(NamedTuple):
    turn: TurnFacts
    worker: str
    begin: float
    claimed: float
    delayed_until: float


def _lost(turn: TurnFacts) -> Iterator[_Lost]:
    """Each delivery that did not come to its end, and the claim of the next. Times in seconds since the epoch."""
    running: Line | None = None
    not_kept, delayed_until = 0, 0.0
    for event in turn.log:
        at = float(event["at"]) / 1000
        if event["kind"] == "attempt.started":
            if running:
                worker = running["data"]["worker"].partition("@")[0]
                yield _Lost(turn, worker, float(running["at"]) / 1000, at, delayed_until)
            running, delayed_until = event, 0.0
        elif event["kind"] in {"attempt.completed", FINISHED}:
            running, not_kept = None, 0
        elif event["kind"] == "attempt.lost" and event["data"]["during"] in _NOT_KEPT:
            not_kept += 1
            delayed_until = at + min(2.0 ** (not_kept - 1), _LONGEST_HAND_OVER)
            delayed_until += _ELSEWHERE_SECONDS if event["data"]["during"] == "killed" else 0.0


def _recovery(facts: Facts, lost: _Lost, disturbing: list[Fault], settle: float) -> Recovery | None:
    """None when no fault explains the loss: then the invariant about agent starts has something to say."""
    hits = _between(disturbing, lost.begin, lost.claimed)
    if not hits:
        return None
    own = [fault for fault in hits if lost.worker in fault.workers and fault.begin > lost.begin]
    first = min(fault.begin for fault in own or hits)
    alone = bool(own) and own[0].kind in _OF_WORKERS and _between(disturbing, first - settle, lost.claimed) == own[:1]
    last = first if alone else max(_over(fault, lost.claimed) for fault in hits)
    clock = max(last, lost.delayed_until)
    excused = sum(line["seconds"] for line in facts.by["late"] if clock < line["wall"] < lost.claimed + line["seconds"])
    return Recovery(lost.turn.turn, alone, lost.claimed - first, max(0.0, lost.claimed - clock), excused)


def _between(faults: list[Fault], begin: float, end: float) -> list[Fault]:
    return [fault for fault in faults if fault.begin < end and (fault.end or end) > begin]


def _over(fault: Fault, claimed: float) -> float:
    """When the fault was over: for one that still lasted, or never ended, when the turn was claimed all the same."""
    return min(fault.end or claimed, claimed)


def poison_times(facts: Facts) -> list[float]:
    """When an agent ran that kills its worker, in seconds since the epoch."""
    poison = {turn.turn for turn in facts.turns.values() if _kind(facts, turn) == "poison"}
    return [line["at"] for line in facts.by["execution"] if line["turn"] in poison]


def _kind(facts: Facts, turn: TurnFacts) -> str:
    submit = facts.submits.get(turn.key)
    return submit.kind if submit else ""


def bound(facts: Facts) -> float:
    """The longest a turn may wait for another worker, in seconds."""
    return (
        facts.setting("lease_seconds", 6.0)
        + facts.setting("reap_seconds", 1.0)
        + facts.setting("announce_seconds", 5.0)
        + 1.0
    )


def bounded_recovery(facts: Facts) -> Iterator[Problem]:
    """Recovery within the bound, and every end within the deadline.

    After faults that overlap a worker may have to start first, and reapers wait a lease after an outage.
    """
    for found in recoveries(facts):
        allowed = bound(facts) + (0.0 if found.alone else RESTART_SECONDS) + found.excused
        if found.undisturbed > allowed:
            kind = "" if found.alone else " after the last of several faults"
            text = f"{found.turn} waited {found.undisturbed:.1f} s for another worker{kind}"
            yield Problem(14, "slow_recoveries", text)
    for turn in facts.turns.values():
        late = (turn.number("finished_at") - turn.number("deadline_at")) / 1000
        # A phase's time begins with its first claim: one that was called off before has no deadline.
        if turn.number("finished_at") and turn.number("deadline_at") and late > _LATE_SECONDS:
            yield Problem(14, "after_the_deadline", f"{turn.turn} ended {late:.1f} s after its deadline")
    for line in facts.by["phase"]:
        if line.get("clients_left"):
            yield Problem(14, "clients_left", f"{line['clients_left']} clients had no answer when time was up")
