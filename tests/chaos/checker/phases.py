"""Invariant 17: a phase's attempt is verified with one outcome, on evidence, and its files are those.

A verification that is lost is made again, so its events may come twice; what they decide may not differ.
"""

import json
from collections.abc import Iterator

from tests.chaos.checker.facts import Facts, Line, Problem, TurnFacts, decided_by

_JUDGED = {"attempt.accepted": True, "attempt.rejected": False}
_PASSED = {"passed", "passed_after_retry"}
_PUBLISHED = {*_PASSED, "passed_by_human"}


def verified_once(facts: Facts) -> Iterator[Problem]:
    """One outcome per attempt, in every verdict, judgement and record; none without what it rests on."""
    for turn in facts.turns.values():
        if turn.phase:
            yield from _outcomes(turn)
            yield from _grounds(turn)


def _outcomes(turn: TurnFacts) -> Iterator[Problem]:
    """One judgement of an attempt, and one verdict however often it is asked for; a killed verifier gives none.

    A verdict that was lost with its worker need not be what is judged: in the repeat a verifier or a gate may be
    killed. What a judgement rests on is looked at by ``_grounds``.
    """
    for attempt in sorted({event["data"]["attempt"] for event in turn.log if event["kind"] in _JUDGED}):
        events = [event for event in turn.log if event["data"].get("attempt") == attempt]
        judged = [_JUDGED[event["kind"]] for event in events if event["kind"] in _JUDGED]
        verdicts = [
            event["data"]["success"]
            for event in events
            if event["kind"] == "verifier.judged" and event["data"]["ground"] == "verdict"
        ]
        if len(judged) > 1 or len(set(verdicts)) > 1:
            text = f"{turn.turn} ({turn.key}), attempt {attempt}: judged {judged} on verdicts {verdicts}"
            yield Problem(17, "verified_twice", text)
        stored = json.loads(turn.attempts.get(f"{attempt}:verification") or "{}").get("success")
        if stored is not judged[0]:
            text = f"{turn.turn} ({turn.key}), attempt {attempt}: judged {judged[0]}, recorded {stored}"
            yield Problem(17, "verified_twice", text)


def _grounds(turn: TurnFacts) -> Iterator[Problem]:
    """What was found since the agent ran, or since the verification began again after a loss.

    After a loss it need not begin again: a worker may die between sealing what it accepted and committing it.
    """
    gates: dict[str, bool] = {}
    verdict: bool | None = None
    lost = False
    for event in turn.log:
        kind, data = event["kind"], event["data"]
        if kind == "attempt.started" or (lost and kind == "gate.checked"):
            gates, verdict, lost = {}, None, False
        if kind == "attempt.lost":
            lost = True
        elif kind == "gate.checked":
            gates[data["gate"]] = data["passed"]
        elif kind == "verifier.judged":
            verdict = data["success"]
        elif kind in _JUDGED:
            found = bool(gates) and all(gates.values()) and (verdict is True or not turn.phase.get("verify_agent"))
            if found is not _JUDGED[kind] or (lost and not _JUDGED[kind]):  # only what passed is sealed
                text = f"{turn.turn} ({turn.key}): {kind} though gates say {gates} and the verifier {verdict}"
                yield Problem(17, "unfounded", text)


def verified_files(facts: Facts) -> Iterator[Problem]:
    """The phase's output is what the accepted delivery left, whole; nothing is there of a phase that did not pass."""
    turns = {(turn.directory, turn.phase["id"]): turn for turn in facts.turns.values() if turn.phase}
    edits = {line["decision"]: line["wrote"] for line in facts.by["decide"] if "wrote" in line}
    for line in facts.by["phase_files"]:
        turn = turns.get((line["directory"], line["phase"]))
        where = f"{line['directory']}/{line['phase']}"
        if turn is None:
            yield Problem(17, "wrong_output", f"{where} belongs to no turn")
            continue
        for name in sorted(line["deliveries"].keys() - _claimed(turn)):
            yield Problem(17, "wrong_output", f"{where}: {name} was never claimed")
        if turn.outcome not in _PUBLISHED:
            if line["output"]:
                yield Problem(17, "wrong_output", f"{where}: {turn.turn} ended {turn.outcome}, and there is an output")
            continue
        yield from _published(turn, line, where, edits)


def _published(turn: TurnFacts, line: Line, where: str, edits: dict[str, str]) -> Iterator[Problem]:
    accepted = turn.last("attempt.accepted")
    attempt = accepted["data"]["attempt"] if accepted else turn.number("best")
    delivery = f"{turn.turn}-{attempt}-{turn.attempts.get(f'{attempt}:last_delivery', '')}"
    output = line["output"]
    if not output or output != line["deliveries"].get(delivery):
        yield Problem(17, "wrong_output", f"{where}: the output is not what {delivery} left")
    if turn.outcome in _PASSED and not all(map(_parses, output.values())):
        yield Problem(17, "wrong_output", f"{where}: {turn.turn} passed with {output}")
    decided = turn.last("turn.decided")
    if decided and decided["data"]["kind"] == "edit" and set(output.values()) != {edits.get(decided_by(decided))}:
        yield Problem(17, "wrong_output", f"{where}: not what {decided_by(decided)} wrote: {output}")
    if line["feedback"]:
        yield Problem(17, "wrong_output", f"{where}: feedback.md lies beside an output that passed")


def _claimed(turn: TurnFacts) -> set[str]:
    starts = [event["data"] for event in turn.log if event["kind"] == "attempt.started"]
    return {f"{turn.turn}-{data['attempt']}-{data['delivery']}" for data in starts}


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
