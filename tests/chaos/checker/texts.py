"""Invariant 12: the text a client received is the accepted attempt's text, and nothing of a rejected or lost one."""

import re
from collections.abc import Iterator

from tests.chaos.checker.facts import FINISHED, Facts, Problem, TurnFacts, decided_by

_MARKER = re.compile(r"<!--[ \t]*STEP[ \t]*:[^\n>]*-->", re.IGNORECASE)
_SUCCESS = {"passed", "passed_after_retry", "passed_by_fallback"}


def shown(text: str) -> str:
    """An answer as a user sees it: without the step marker. The run's own answers have no code in them."""
    return _MARKER.sub("", text).rstrip()


def client_texts(facts: Facts) -> Iterator[Problem]:
    """Every completion, streamed or whole, against the turn's end."""
    for line in facts.by["chat"]:
        turn = facts.turns.get(line.get("turn") or "")
        end = turn.last(FINISHED) if turn else None
        if line["type"] != "ok" or end is None:
            continue
        outcome, response = end["data"]["outcome"], end["data"]["response"]
        told = line["text"] if outcome in _SUCCESS else line["error"]
        right = shown(response) if outcome in _SUCCESS else outcome
        if told != right or bool(line["error"]) == (outcome in _SUCCESS):
            got = f"{line['error']!r} {line['text'][:60]!r}"
            yield Problem(
                12, "client_text_differs", f"{line['turn']} ({line['key']}) ended {outcome}, its client got {got}"
            )


def committed_texts(facts: Facts) -> Iterator[Problem]:
    """The committed answer against the script, and each accepted attempt's text against its own delivery's output."""
    for turn in facts.turns.values():
        submit, end = facts.submits.get(turn.key), turn.last(FINISHED)
        if end is None or submit is None:
            continue
        outcome, response = end["data"]["outcome"], end["data"]["response"]
        if outcome in _SUCCESS and shown(response) not in {shown(answer) for answer in submit.answers}:
            text = f"{turn.turn} ({turn.key}, {submit.kind}) answers what its agent never said: {response[:60]!r}"
            yield Problem(12, "answer_differs", text)
        if response != turn.record.get("response"):
            yield Problem(12, "answer_differs", f"{turn.turn}: log and record hold different answers")
        yield from _outputs(turn)


def decided_texts(facts: Facts) -> Iterator[Problem]:
    """What a person let pass is the best attempt's answer, and what a person wrote instead is what that person sent."""
    wrote = {line["decision"]: line.get("wrote") for line in facts.by["decide"]}
    for turn in facts.turns.values():
        decided = turn.last("turn.decided")
        if turn.phase or turn.outcome != "passed_by_human" or decided is None:
            continue
        by, kind = decided_by(decided), decided["data"]["kind"]
        attempt = turn.number("best") or turn.number("attempt")
        best = (turn.attempts.get(f"{attempt}:{name}") for name in ("mended", "answer", "text"))
        right = wrote.get(by) if kind == "edit" else next(filter(None, best), "")
        if turn.record.get("response") != right:
            text = f"{turn.turn}: {by} decided {kind}, and it answers {turn.record.get('response', '')[:60]!r}"
            yield Problem(12, "answer_differs", text)


def _outputs(turn: TurnFacts) -> Iterator[Problem]:
    said, attempt = "", 0
    for event in turn.log:
        kind, data = event["kind"], event["data"]
        if kind == "attempt.started":
            said, attempt = "", data["attempt"]
        elif kind == "attempt.output":
            said += data["text"]
        elif kind == "attempt.reset":
            said = ""
        elif kind == "attempt.completed" and data["verdict"] == "complete":
            stored = turn.attempts.get(f"{attempt}:text", "")
            if stored != said:
                text = f"{turn.turn}, attempt {attempt}: {len(said)} characters told, {len(stored)} stored"
                yield Problem(12, "answer_differs", text)
