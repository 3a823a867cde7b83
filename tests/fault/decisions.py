"""What pretend workers decide, as the real ``Move``s the ledger sends. A schedule chooses which, and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from api_client.contract.tasks import FAIL, FALLBACK, RETRY, RUN, VALIDATE, Link
from api_client.contract.turn import Outcome, TurnState
from worker.turns.moves import Answer, EventData, Move


@cache
def commit_arguments(move_name: str, link: Link, retries: int, delay_ms: int) -> tuple[str, ...]:
    """Move and events of a commit, as the ledger sends them."""
    move = _MOVES[move_name](link, retries, delay_ms)
    return (move.to_json(), *(part for kind, data in move.events for part in (kind, json.dumps(data))))


def _ran(link: Link, next_link: Link | None, **more: Any) -> Move:
    state = TurnState.QUEUED if next_link and next_link.task in {RUN, RETRY} else TurnState.RAN
    events: list[EventData] = [("attempt.completed", {"attempt": link.attempt})]
    if state is TurnState.QUEUED:
        events.append(("turn.retrying", {"attempt": link.attempt, "reason": "not rejected"}))
    usual: dict[str, Any] = {"events": events, "counters": {"attempt.completed": 1}}
    return Move(attempt=link.attempt, next=next_link, state=state, **(usual | more))


def _rejected(link: Link, next_link: Link, *more: EventData, **fields: str) -> Move:
    return Move(
        attempt=link.attempt,
        next=next_link,
        state=TurnState.QUEUED if next_link.task == RETRY else TurnState.RAN,
        events=[("attempt.rejected", {"attempt": link.attempt, "issues": []}), *more],
        counters={"attempt.rejected": 1},
        fields=fields,
    )


def _ended(link: Link, outcome: Outcome, *events: EventData) -> Move:
    answer = Answer(response=f"Antwort {link}") if outcome.success else Answer(error={"code": outcome.value})
    return Move(attempt=link.attempt, outcome=outcome, answer=answer, events=list(events))


#: What a worker may decide, by name: (link, retries so far, delay) -> move.
_MOVES: dict[str, Callable[[Link, int, int], Move]] = {
    "complete": lambda link, _r, _d: _ran(link, Link(VALIDATE, link.attempt), run_ended=True),
    "incomplete": lambda link, _r, _d: _ran(link, Link(RETRY, link.attempt + 1), run_ended=True),
    "transient": lambda link, _r, delay: _ran(link, link, delay_ms=delay, run_ended=True),
    "unable": lambda link, _r, _d: _ran(link, Link(FAIL, link.attempt), run_ended=True),
    "hand over": lambda link, _r, _d: _ran(
        link, link, counters={}, events=[("attempt.lost", {"attempt": link.attempt, "during": "shutdown"})]
    ),
    "called off": lambda link, _r, _d: _ran(
        link, None, counters={"attempt.completed": 1}, outcome=Outcome.CANCELLED, answer=Answer(error={"code": "off"})
    ),
    "accept": lambda link, retries, _d: _ended(
        link,
        Outcome.PASSED_AFTER_RETRY if retries else Outcome.PASSED,
        ("attempt.accepted", {"attempt": link.attempt, "issues": []}),
    ),
    "retry": lambda link, retries, _d: _rejected(
        link,
        Link(RETRY, link.attempt + 1),
        ("turn.retrying", {"attempt": link.attempt + 1, "reason": "rejected"}),
        retries=str(retries + 1),
    ),
    "fall back": lambda link, _r, _d: _rejected(
        link, Link(FALLBACK, link.attempt), ("turn.fallback", {"attempt": link.attempt, "codes": []})
    ),
    "reject": lambda link, _r, _d: _rejected(link, Link(FAIL, link.attempt)),
    "mend": lambda link, _r, _d: _ended(link, Outcome.PASSED_BY_FALLBACK, ("turn.mended", {"attempt": link.attempt})),
    "not mended": lambda link, _r, _d: replace(_ran(link, Link(FAIL, link.attempt)), events=[], counters={}),
    "fail": lambda link, _r, _d: _ended(link, Outcome.FAILED),
}
#: What may follow a link, some more often than others.
CHOICES = {
    RUN: ("complete", "complete", "complete", "incomplete", "transient", "unable", "hand over"),
    VALIDATE: ("accept", "accept", "retry", "fall back", "reject"),
    FALLBACK: ("mend", "not mended"),
    FAIL: ("fail",),
}
CHOICES[RETRY] = CHOICES[RUN]
#: The shortest way to an end.
STRAIGHT = {RUN: "complete", RETRY: "complete", VALIDATE: "accept", FALLBACK: "mend", FAIL: "fail"}
