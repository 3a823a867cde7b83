"""A long text is stored once, and found again by whoever reads the record."""

from __future__ import annotations

import dataclasses

import pytest

from api_client.contract.record import attempts_of
from api_client.contract.turn import Outcome
from worker.enforcement.documents.step import marker_spans
from worker.turns.transitions.accepted import Accepted
from worker.turns.transitions.moves import Answer, Move
from worker.turns.transitions.texts import once, whole

LONG = "Ein Satz.\n" * 4000 + "<!-- STEP: done -->\n"
OTHER = "Etwas anderes.\n" * 4000


def ending(response: str, **facts: str) -> Move:
    answer = Answer(response=response, step="done", step_source="marker")
    return Move(attempt=2, outcome=Outcome.PASSED, facts=facts, answer=answer)


def test_short_texts_stay_where_they_are() -> None:
    move = ending("Ja.", answer="Ja.")
    assert once(move, {"text": "Ja."}) == move


@pytest.mark.parametrize(
    ("move", "stored", "place", "sent"),
    [
        (ending(LONG, answer=LONG), {"text": LONG}, "2:text", 0),
        (ending(LONG, answer=LONG), {"text": OTHER}, "2:answer", 1),
        (ending(LONG, mended=LONG), {"text": OTHER, "answer": OTHER}, "2:mended", 1),
        (ending(LONG, decision="accept"), {"text": LONG, "answer_in": "text"}, "2:text", 0),
        (ending(LONG, decision="accept"), {"text": OTHER}, "2:response", 1),
    ],
    ids=["as the agent said it", "spliced", "by the fallback", "by a person", "edited by a person"],
)
def test_a_long_answer_is_sent_once_at_most_and_read_again(
    move: Move, stored: dict[str, str], place: str, sent: int
) -> None:
    told = once(move, stored)
    assert told.answer.response_in == place
    assert told.answer.response == ""
    assert told.answer.markers == marker_spans(LONG)
    words = [str(word) for word in (*told.arguments().values(), *told.rest())]
    assert sum(len(word) > 20_000 for word in words) == sent
    assert whole(told, stored) == dataclasses.replace(move, facts=told.facts)
    [record] = attempts_of({2: {**stored, **told.facts}})
    if "answer" in move.facts:
        assert record.answer == LONG


def test_a_seal_does_not_hold_the_text_either() -> None:
    accepted = Accepted(move=ending(LONG, answer=LONG), delivery="d")
    stored = {"text": LONG}
    sealed = accepted.to_json(stored)
    assert len(sealed) < 1000
    move = Accepted.from_json(sealed).move
    assert whole(move, stored).answer == accepted.move.answer
    assert once(whole(move, stored), stored) == once(accepted.move, stored)


def test_an_answer_that_is_written_anew_is_no_longer_that_of_another_fact() -> None:
    stored = {"text": LONG, "answer_in": "text"}
    facts = {**stored, **once(Move(attempt=2, facts={"answer": "kurz"}), stored).facts}
    [record] = attempts_of({2: facts})
    assert record.answer == "kurz"


def test_the_users_message_is_no_fact_of_the_attempt_that_was_asked_with_it() -> None:
    asked = once(Move(attempt=1, facts={"prompt": LONG, "text": LONG}), {}, LONG)
    assert asked.facts == {"prompt_in": "request", "text": LONG}
    [record] = attempts_of({1: asked.facts}, LONG)
    assert (record.prompt, record.text) == (LONG, LONG)


def test_a_run_that_is_asked_to_go_on_is_no_longer_shown_with_the_users_message() -> None:
    stored = {"prompt_in": "request"}
    facts = {**stored, **once(Move(attempt=1, facts={"prompt": OTHER}), stored, LONG).facts}
    [record] = attempts_of({1: facts}, LONG)
    assert record.prompt == OTHER
