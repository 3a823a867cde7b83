"""Invariant 8: in a session, turns run one at a time and in the order they were submitted."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.checker.facts import FINISHED, Facts, Problem, TurnFacts


def _span(turn: TurnFacts) -> tuple[int, int]:
    """First start and end of a turn in ms of the store's clock; 0 for never."""
    starts = [event["at"] for event in turn.log if event["kind"] == "attempt.started"]
    end = turn.last(FINISHED)
    return (starts[0] if starts else 0), (end["at"] if end else 0)


def session_order(facts: Facts) -> Iterator[Problem]:
    """Where one submit was acknowledged before the next was sent, the first turn ends before the second starts."""
    chats: dict[str, list[TurnFacts]] = defaultdict(list)
    for turn in facts.turns.values():
        chats[turn.session].append(turn)
    for session, turns in chats.items():
        started = sorted((turn for turn in turns if _span(turn)[0]), key=lambda turn: _span(turn))
        for first, second in pairwise(started):
            if _span(first)[1] > _span(second)[0] or not _span(first)[1]:
                text = f"{session}: {second.turn} started while {first.turn} was active"
                yield Problem(8, "order_violations", text)
        submits = [facts.submits[turn.key] for turn in started if turn.key in facts.submits]
        for place, later in enumerate(submits):
            for earlier in submits[place + 1 :]:
                if earlier.accepted and earlier.accepted < later.first_try:
                    text = f"{session}: {later.key} ran before {earlier.key}, which was acknowledged before it was sent"
                    yield Problem(8, "order_violations", text)
