"""Invariant 13: the session's folder holds the accepted answer and its mark, and nobody else's."""

import json
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.checker.facts import FINISHED, Facts, Line, Problem, TurnFacts

_SUCCESS = {"passed", "passed_after_retry", "passed_by_fallback", "passed_by_human"}


def files_marked(facts: Facts) -> Iterator[Problem]:
    """Each session's ``.done`` and ``response.md``, and that no delivery was started without a claim."""
    sessions: dict[str, list[TurnFacts]] = defaultdict(list)
    for turn in facts.turns.values():
        sessions[turn.session].append(turn)
    for line in facts.by["files"]:
        turns = sessions.get(line["session"], [])
        yield from _deliveries(line, turns)
        if line["strays"]:
            yield Problem(13, "wrong_files", f"{line['session']}: .done in {line['strays'][:3]}")
        accepted = [turn for turn in turns if (turn.last(FINISHED) or {"data": {}})["data"].get("outcome") in _SUCCESS]
        marks = {_mark(turn): turn for turn in accepted}
        if line["done"] is not None and _attempt_id(line["done"]) not in marks:
            yield Problem(13, "wrong_files", f"{line['session']}: .done names {line['done'].strip()}, never accepted")
        last = max(accepted, key=_ended, default=None)
        if last is not None and line["response"] != last.record["response"]:
            yield Problem(13, "wrong_files", f"{line['session']}: response.md is not the answer of {last.turn}")


def _ended(turn: TurnFacts) -> int:
    end = turn.last(FINISHED)
    return int(end["at"]) if end else 0


def _attempt_id(done: str) -> str:
    try:
        return str(json.loads(done)["attempt_id"])
    except (ValueError, KeyError, TypeError):
        return ""


def _mark(turn: TurnFacts) -> str:
    """The delivery whose answer was accepted: the last judged one, or the best one when a fallback or a person did."""
    event = turn.last("turn.mended") or turn.last("attempt.accepted") or {"data": {"attempt": 0}}
    attempt = event["data"]["attempt"]
    if turn.outcome == "passed_by_human":
        attempt = turn.number("best") or turn.number("attempt")
    return f"{turn.turn}-{attempt}-{turn.attempts.get(f'{attempt}:last_delivery', '')}"


def _deliveries(line: Line, turns: list[TurnFacts]) -> Iterator[Problem]:
    claimed = {
        f"{turn.turn}-{event['data']['attempt']}-{event['data']['delivery']}"
        for turn in turns
        for event in turn.log
        if event["kind"] == "attempt.started"
    }
    for name in sorted(set(line["deliveries"]) - claimed):
        yield Problem(13, "wrong_files", f"{line['session']}: {name} was never claimed")
