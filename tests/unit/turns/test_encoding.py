"""A long text is stored once, and found again by whoever reads the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.record import attempts_of
from api_client.contract.turn import Outcome
from worker.enforcement.documents.step import marker_spans
from worker.turns.transitions.accepted import Accepted
from worker.turns.transitions.encoding import decode, encode, left_behind
from worker.turns.transitions.judged_run import JudgedRun
from worker.turns.transitions.moves import Answer, Move, attempt_facts

LONG = "Ein Satz.\n" * 4000 + "<!-- STEP: done -->\n"
OTHER = "Etwas anderes.\n" * 4000


def ending(response: str, **facts: Any) -> Move:
    answer = Answer(response=response, step="done", step_source="marker")
    return Move(attempt=2, outcome=Outcome.PASSED, facts=attempt_facts(**facts), answer=answer)


def test_short_texts_stay_where_they_are() -> None:
    move = ending("Ja.", answer="Ja.")
    wire = encode(move, {"text": "Ja."})
    assert (wire.facts, wire.response, wire.response_in) == ({"answer": "Ja."}, "Ja.", "")


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
    wire = encode(move, stored)
    assert (wire.response_in, wire.response) == (place, "")
    assert wire.move.texts.spans == marker_spans(LONG)
    words = [str(word) for word in (*wire.arguments().values(), *wire.rest())]
    assert sum(len(word) > 20_000 for word in words) == sent
    assert decode(wire.to_dict(), [], stored).answer == move.answer
    [record] = attempts_of({2: {**stored, **wire.facts}})
    if "answer" in move.facts.values:
        assert record.answer == LONG


def test_a_seal_does_not_hold_the_text_either() -> None:
    accepted = Accepted(move=ending(LONG, answer=LONG), delivery="d")
    stored = {"text": LONG}
    sealed = accepted.to_json(stored)
    assert len(sealed) < 1000
    found = Accepted.from_json(sealed, lambda _: stored)
    assert found == accepted
    assert found.to_json(stored) == sealed


def test_a_seal_of_a_run_that_was_judged_at_once_says_all_of_the_run() -> None:
    run = Move(attempt=2, facts=attempt_facts(text="Ja."), counters={"a": 1}, service="answered", service_reason="why")
    verdict = replace(ending("Ja.", answer="Ja."), counters={"a": 1, "b": 2}, judged=True)
    move = JudgedRun.of(run, verdict, judged_ms=7).move
    assert (move.run_ended, move.judged, move.judged_ms, move.counters) == (True, True, 7, {"a": 2, "b": 2})
    found = Accepted.from_json(Accepted(move=move, delivery="d").to_json({}), lambda _: {})
    assert found.move == move


def test_a_changed_copy_of_a_move_has_texts_of_its_own() -> None:
    move = replace(ending("Ja.", answer="Ja."), events=[AttemptOutput(attempt=2, text="Ja.")])
    assert move.texts.events == ["attempt.output", '{"attempt": 2, "text": "Ja."}']
    assert replace(move, events=[]).texts.events == []
    assert replace(move, facts=attempt_facts(answer="Nein.")).texts.facts == {"answer": "Nein."}


def test_an_answer_that_is_written_anew_is_no_longer_that_of_another_fact() -> None:
    stored = {"text": LONG, "answer_in": "text"}
    facts = {**stored, **encode(Move(attempt=2, facts=attempt_facts(answer="kurz")), stored).facts}
    [record] = attempts_of({2: facts})
    assert record.answer == "kurz"


def test_the_users_message_is_no_fact_of_the_attempt_that_was_asked_with_it() -> None:
    asked = encode(Move(attempt=1, facts=attempt_facts(prompt=LONG, text=LONG)), {}, LONG)
    assert asked.facts == {"prompt_in": "request", "text": LONG}
    [record] = attempts_of({1: asked.facts}, LONG)
    assert (record.prompt, record.text) == (LONG, LONG)


def test_a_run_that_is_asked_to_go_on_is_no_longer_shown_with_the_users_message() -> None:
    stored = {"prompt_in": "request"}
    facts = {**stored, **encode(Move(attempt=1, facts=attempt_facts(prompt=OTHER)), stored, LONG).facts}
    [record] = attempts_of({1: facts}, LONG)
    assert record.prompt == OTHER


VERY_LONG = LONG * 3


@pytest.mark.parametrize(
    ("move", "stored", "facts", "ahead", "place"),
    [
        (Move(attempt=2, facts=attempt_facts(text=VERY_LONG)), {}, {"text_in": "text~me"}, ["text~me"], ""),
        (
            ending(VERY_LONG, answer=VERY_LONG),
            {"text": OTHER},
            {"answer_in": "answer~me"},
            ["answer~me"],
            "2:answer~me",
        ),
        (
            ending(VERY_LONG, decision="accept"),
            {"text": OTHER},
            {"decision": "accept"},
            ["response~me"],
            "2:response~me",
        ),
        (
            ending(VERY_LONG, answer=VERY_LONG),
            {"text_in": "text~other", "text~other": VERY_LONG},
            {"answer_in": "text~other"},
            [],
            "2:text~other",
        ),
        (ending(VERY_LONG, answer=VERY_LONG), {"text": VERY_LONG}, {"answer_in": "text"}, [], "2:text"),
        (Move(attempt=2, facts=attempt_facts(text=LONG)), {}, {"text": LONG}, [], ""),
    ],
    ids=["a run's", "spliced", "edited by a person", "as the agent said it", "of the landed format", "not that long"],
)
def test_a_very_long_text_is_written_before_its_move_under_the_writers_token(
    move: Move, stored: dict[str, str], facts: dict[str, str], ahead: list[str], place: str
) -> None:
    wire = encode(move, stored, token="me")
    assert (wire.facts, list(wire.ahead), wire.response_in) == (facts, ahead, place)
    assert wire.arguments()["ahead"] == " ".join(ahead)
    assert not any(len(word) > len(LONG) for word in map(str, (*wire.arguments().values(), *wire.rest())))
    known = {**stored, **wire.ahead, **wire.facts}
    [record] = attempts_of({2: known})
    if "answer" in move.facts.values:
        assert record.answer == VERY_LONG
    if "text" in move.facts.values:
        assert record.text == move.facts.values["text"]
    assert left_behind(known) == ["response~me"] * (place == "2:response~me")
    assert encode(move, known, token="me").ahead == {}


def test_what_was_written_ahead_of_no_move_is_known_by_its_name() -> None:
    facts = {"text_in": "text~a", "text~a": VERY_LONG, "text~b": OTHER, "answer_in": "", "answer~b": OTHER}
    assert left_behind(facts) == ["text~b", "answer~b"]
