"""Invariant 19: a decision on a suspended turn is applied once, as it was made; a time-out comes when it is due."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.chaos.checker.facts import Facts, Line, Problem, TurnFacts, decided_by

_TIMEOUT = "timeout"
#: A time-out may decide this much before its time, in ms: both times are of one clock.
_EARLY_MS = 5


def decided_once(facts: Facts) -> Iterator[Problem]:
    """Each decision a person made, by what it was answered; and each one the logs tell, by who made it."""
    asked: dict[str, Line] = {}
    answers: dict[str, set[str]] = defaultdict(set)
    for line in facts.by["decide"]:
        asked[line["decision"]] = line
        answers[line["decision"]].add(line["type"])
    applied = Counter(decided_by(event) for _, event in facts.of_kind("turn.decided"))
    for decision, line in asked.items():
        count, said = applied[decision], answers[decision]
        if count > 1:
            yield Problem(19, "decided_twice", f"{line['turn']}: {decision} ({line['kind']}) was applied {count} times")
        elif "ok" in said and not count:
            yield Problem(19, "decision_lost", f"{line['turn']}: {decision} ({line['kind']}) was taken, not applied")
        elif "ok" not in said and "fail" in said and count:
            yield Problem(19, "decided_twice", f"{line['turn']}: {decision} ({line['kind']}) was refused and applied")
    for turn in facts.turns.values():
        yield from _told(turn, asked)


def _told(turn: TurnFacts, asked: dict[str, Line]) -> Iterator[Problem]:
    suspended: Line = {}
    for event in turn.log:
        if event["kind"] == "turn.suspended":
            suspended = event
        if event["kind"] != "turn.decided":
            continue
        by, kind = decided_by(event), event["data"]["kind"]
        if not suspended:
            yield Problem(19, "decided_twice", f"{turn.turn}: {by} decided {kind} when nothing waited for a decision")
        elif by == _TIMEOUT:
            waits = suspended["data"]["interruption"]
            due = suspended["at"] + waits["wait_seconds"] * 1000
            if kind != waits["silence"]:
                yield Problem(19, "decision_invented", f"{turn.turn}: the time-out decided {kind}")
            if event["at"] < due - _EARLY_MS:
                yield Problem(19, "decision_invented", f"{turn.turn}: timed out {due - event['at']:.0f} ms too early")
        elif by not in asked or (asked[by]["turn"], asked[by]["kind"]) != (turn.turn, kind):
            yield Problem(19, "decision_invented", f"{turn.turn}: nobody decided {kind} as {by}")
        suspended = {}
