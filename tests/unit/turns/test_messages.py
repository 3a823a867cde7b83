"""What a user reads when a turn ends without an answer: every sentence in their language."""

from __future__ import annotations

import pytest

from api_client.contract.tasks import Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.contract.words.messages import broken_off
from worker.runners.base import Completion, ErrorKind, RunResult, Verdict, Why
from worker.turns.transitions.after_judging import after_giving_up
from worker.turns.transitions.after_run import after_run
from worker.turns.transitions.backoff import Delays

REASON = "the agent was killed by signal 9"


def end(completion: Completion, locale: str) -> str:
    """The message of a turn whose only run ended so."""
    messages = ({"role": "user", "content": "x"},)
    request = TurnRequest(model="m", messages=messages, session_id="s", locale=locale, max_attempts=1)
    turn = Turn(turn_id="t0-1", epoch="e", state=TurnState.RUNNING, request=request, delivery=1)
    ran = after_run(
        turn,
        Link("turn.run", 1),
        RunResult(completion=completion),
        prompt="x",
        transient_retries=0,
        delays=Delays(first=1.0, busy=15.0),
    )
    given_up = after_giving_up(turn, Link("turn.fail", 1), ran.fields.values["failing"], [])
    assert given_up.answer
    assert given_up.answer.error.reason == completion.reason
    return str(given_up.answer.error.message)


@pytest.mark.parametrize("why", [*Why, None])
def test_a_reader_of_german_gets_no_english_sentence(why: Why | None) -> None:
    message = end(Completion(verdict=Verdict.INCOMPLETE, why=why, reason=REASON), "de")
    assert REASON not in message
    assert message.splitlines()[1].startswith("- ")
    assert REASON in end(Completion(verdict=Verdict.INCOMPLETE, why=why, reason=REASON), "en")


@pytest.mark.parametrize("kind", [kind for kind in ErrorKind if kind is not ErrorKind.HOST])  # that ends no turn
def test_nor_when_the_agent_could_not_work(kind: ErrorKind) -> None:
    message = end(Completion(verdict=Verdict.ERROR, kind=kind, reason=REASON), "de")
    assert REASON not in message


def test_each_why_has_words_of_its_own() -> None:
    assert len({broken_off(why.value, "de", REASON) for why in Why}) == len(Why)
