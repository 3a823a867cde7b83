"""What follows from a run that broke off: a chat's agent goes on from its text, a phase's begins with its files."""

from __future__ import annotations

from typing import Any

import pytest

from api_client.contract.attempt import AttemptRecord
from api_client.contract.event_kinds import TurnRetrying
from api_client.contract.tasks import PHASE_RUN, RETRY, RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.enforcement.feedback import go_on_feedback, incomplete_feedback
from worker.runners.base import Completion, ErrorKind, RunResult, Verdict, Why
from worker.turns.transitions.after_run import after_run
from worker.turns.transitions.backoff import Delays
from worker.turns.transitions.moves import Move, attempt_facts

TEXT = "Der Cache liegt vor dem Index und hält sechzig Sekunden. Er wird geleert, sobald der Schreiber sp"


DIED = Completion(verdict=Verdict.INCOMPLETE, why=Why.BROKE_OFF, reason="died")


def broke_off(
    text: str, *before: AttemptRecord, phase: dict[str, Any] | None = None, completion: Completion = DIED
) -> Move:
    request = TurnRequest(model="m", messages=({"role": "user", "content": "?"},), session_id="s", phase=phase)
    turn = Turn(turn_id="t0-" + "0" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    link = Link(PHASE_RUN if phase else RUN, len(before) + 1)
    result = RunResult(completion=completion, text=text)
    return after_run(
        turn, link, result, prompt="?", history=before, transient_retries=3, delays=Delays(first=1, busy=1, left=9)
    )


def goes_on(move: Move) -> bool:
    [told] = [body for body in move.events if isinstance(body, TurnRetrying)]
    assert move.facts.values["goes_on"] is told.goes_on
    return bool(told.goes_on)


def test_the_text_of_a_chat_is_gone_on_from() -> None:
    move = broke_off(TEXT)
    assert (move.next, move.facts.values["text"], move.facts.values["feedback"]) == (
        Link(RETRY, 2),
        TEXT,
        go_on_feedback(TEXT),
    )
    assert goes_on(move)


@pytest.mark.parametrize("text", ["", "Halb"])
def test_next_to_nothing_is_asked_for_in_full(text: str) -> None:
    move = broke_off(text)
    assert move.facts.values["feedback"] == incomplete_feedback()
    assert not goes_on(move)


def test_a_phase_is_asked_for_in_full_whatever_its_agent_said() -> None:
    assert not goes_on(broke_off(TEXT, phase={"id": "build"}))


def test_a_second_break_is_gone_on_from_with_the_longer_text() -> None:
    first = AttemptRecord(number=1, text=TEXT, completion={"verdict": "incomplete"}, goes_on=True, decision="retry")
    move = broke_off(f"{TEXT}eichert. Danach wird neu gel", first)
    assert "> Der Cache liegt vor dem Index" in move.facts.values["feedback"]
    assert "Danach wird neu gel" in move.facts.values["feedback"]
    assert goes_on(move)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (ErrorKind.TRANSIENT, TEXT, True),
        (ErrorKind.TRANSIENT, "Halb", False),
        (ErrorKind.SESSION_LOST, TEXT, False),
    ],
)
def test_a_passing_error_in_mid_answer_leaves_its_text_to_the_same_attempt(
    kind: ErrorKind, text: str, expected: bool
) -> None:
    move = broke_off(text, completion=Completion(verdict=Verdict.ERROR, kind=kind, reason="connection lost"))
    assert move.next == Link(RUN, 1)
    assert [body.goes_on for body in move.events if isinstance(body, TurnRetrying)] == [expected]
    assert move.facts == (attempt_facts(text=text, goes_on=True) if expected else attempt_facts())


def test_a_run_that_ends_otherwise_leaves_nothing_to_go_on_from() -> None:
    done = Completion(verdict=Verdict.COMPLETE, reason="exit 0")
    assert broke_off(TEXT, completion=done).facts.values["goes_on"] is False
