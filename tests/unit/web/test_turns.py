"""The routes of the turn itself, and its events."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from api_client.contract.errors import StoreUnavailable
from api_client.contract.event_kinds import TurnFinished
from api_client.contract.messages import ending_message, explain_break, rejection_message
from api_client.web.openwebui.failure_text import format_failure
from tests.unit.web.conftest import caller
from tests.unit.web.fake import EPOCH, TURN_ID, FakeTurns, app_with, event, finished, passed
from worker.enforcement.validators.adr_structure import ADRStructureValidator
from worker.runners.event_reader import refusal_verdict

TURN = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
EVENTS = f"/v1/turns/{TURN_ID}/events"


def ids(answer: httpx2.Response) -> list[str]:
    return [line.removeprefix("id: ") for line in answer.text.split("\n") if line.startswith("id: ")]


async def test_submit_returns_at_once_and_says_where_to_look(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    answer = await http.post("/v1/turns", json=TURN, headers={"Idempotency-Key": "once"})
    assert answer.status_code == 202
    assert answer.json()["turn_id"] == TURN_ID == answer.headers["x-turn-id"]
    assert answer.headers["location"] == f"/v1/turns/{TURN_ID}"
    assert answer.json()["session_id"] == turns.submitted[0].session_id
    assert turns.keys == ["once"]
    assert turns.followed == []


async def test_a_turn_and_its_attempts_can_be_read(http: httpx2.AsyncClient) -> None:
    turn = (await http.get(f"/v1/turns/{TURN_ID}")).json()
    assert (turn["object"], turn["turn_id"], turn["outcome"], turn["success"]) == ("turn", TURN_ID, "passed", True)
    attempts = (await http.get(f"/v1/turns/{TURN_ID}/attempts")).json()
    assert [attempt["number"] for attempt in attempts["data"]] == [1]


async def test_cancelling_twice_answers_twice(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    assert (await http.post(f"/v1/turns/{TURN_ID}/cancel")).status_code == 200
    assert (await http.delete(f"/v1/turns/{TURN_ID}")).status_code == 200
    assert turns.cancelled == 2
    assert [(action, turn_id) for action, _, turn_id in turns.orders.lines] == [("cancel", TURN_ID)] * 2


async def test_the_events_carry_ids_and_end(http: httpx2.AsyncClient) -> None:
    answer = await http.get(EVENTS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert ids(answer) == [f"{seq}-{EPOCH}-{1_000_000 + 1000 * seq}" for seq in range(1, 7)]
    data = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [item["kind"] for item in data][-1] == "turn.finished"
    assert "\n: ping\n\n" in answer.text


async def test_a_reader_goes_on_behind_the_last_event_it_saw(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    every = ids(await http.get(EVENTS))
    turns.followed.clear()
    answer = await http.get(EVENTS, headers={"last-event-id": every[3]})
    assert ids(answer) == every[4:]
    assert turns.followed == [(4, EPOCH)]
    assert "log.reset" not in answer.text


@pytest.mark.parametrize("given", ["4-other", f"7-{EPOCH}", f"999-{EPOCH}"])
async def test_a_reader_of_another_log_is_told_to_start_over(http: httpx2.AsyncClient, given: str) -> None:
    answer = await http.get(EVENTS, headers={"last-event-id": given})
    assert answer.text.startswith("event: log.reset\n")
    assert len(ids(answer)) == 6


async def test_a_reader_that_has_everything_is_told_not_to_come_back(
    http: httpx2.AsyncClient, turns: FakeTurns
) -> None:
    turns.finished_at = 1_006.0
    last = ids(await http.get(EVENTS))[-1]
    assert (await http.get(EVENTS, headers={"last-event-id": last})).status_code == 204
    other = f"6-{EPOCH}-{1_005_999}"  # the store forgot that end, and another one stands in its place
    assert (await http.get(EVENTS, headers={"last-event-id": other})).status_code == 200
    earlier = f"6-{EPOCH}"  # an id that an earlier version gave out
    assert (await http.get(EVENTS, headers={"last-event-id": earlier})).status_code == 204


async def test_a_reader_whose_events_the_store_forgot_is_told_to_start_over_in_mid_stream() -> None:
    begun = [event(1, "turn.queued", position=0), event(2, "attempt.output", attempt=1, text="Ha")]
    async with caller(app_with(FakeTurns([*begun, event(0, "log.reset", reason="lost"), *passed("Hallo.")]))) as http:
        answer = await http.get(EVENTS)
    assert '\n\nevent: log.reset\ndata: {"seq":0,' in answer.text, "it has no id to come back with"
    assert [int(given.partition("-")[0]) for given in ids(answer)] == [1, 2, 1, 2, 3, 4, 5, 6]


async def test_events_that_break_off_end_with_an_error_event() -> None:
    turns = FakeTurns([event(1, "turn.queued", position=0), StoreUnavailable("redis://secret")])
    async with caller(app_with(turns)) as http:
        answer = await http.get(EVENTS)
    assert "event: error\n" in answer.text
    assert '"code":"stream_lost"' in answer.text
    assert TURN_ID in answer.text
    assert "secret" not in answer.text


async def test_the_store_being_away_is_not_ready_but_alive() -> None:
    turns = FakeTurns()
    turns.refusal = StoreUnavailable("redis://secret")
    async with caller(app_with(turns)) as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "unavailable"})


async def test_the_document_declares_streams_as_streams(http: httpx2.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path, method in [("/v1/chat/completions", "post"), ("/v1/turns/{turn_id}/events", "get")]:
        assert "text/event-stream" in paths[path][method]["responses"]["200"]["content"]
    assert "requestBody" in paths["/v1/turns"]["post"]


async def test_models_are_listed_and_shown(http: httpx2.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["scripted"]
    assert (await http.get("/v1/models/scripted")).json() == listed["data"][0]
    assert listed["data"][0]["info"] == {
        "meta": {"capabilities": {"builtin_tools": False, "vision": False, "usage": True}}
    }


# Every address that programs ask is in docs/http-api.md; the pages are for people.

PAGE = Path(__file__).parents[3] / "docs" / "http-api.md"


def test_every_route_for_programs_is_in_its_page() -> None:
    page = re.sub(r"\{[^}]*\}|ID|<[^>]*>", "*", PAGE.read_text(encoding="utf-8"))
    paths = {str(context.path) for context in iter_route_contexts(app_with(FakeTurns()).routes)}
    asked = [path for path in paths if path.startswith(("/v1/", "/healthz", "/readyz", "/metrics"))]
    assert len(asked) > 20
    assert [path for path in asked if re.sub(r"\{[^}]*\}", "*", path) not in page] == []


# Until its asker has the answer, a question stands for its turn; then it is a new one.

CHAT_PAGE = {"x-owui-task": "", "x-owui-chat-id": "c1", "x-owui-message-id": "m1", "x-owui-user-message-id": "u1"}
BODY: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}


async def ask(turns: FakeTurns, **more: Any) -> httpx2.Response:
    async with caller(app_with(turns)) as http:
        return await http.post("/v1/chat/completions", json={**BODY, "stream": True, **more}, headers=CHAT_PAGE)


def owed(turns: FakeTurns) -> FakeTurns:
    """The same turns, whose one answer was asked for before and has not arrived."""
    turns.create_turn_id = lambda: "turn-" + "6" * 32  # type: ignore[method-assign, assignment]
    turns.open_questions.claim_question = lambda *_, **__: _later(TURN_ID)  # type: ignore[method-assign]
    return turns


async def _later(value: str) -> str:
    return value


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [passed("Gut."), [finished(1, "failed", error={"message": "m"})]])
async def test_an_ending_that_was_sent_is_delivered(script: Any, stream: bool) -> None:
    turns = FakeTurns(script)
    await ask(turns, stream=stream)
    assert len(turns.submitted) == 1
    assert turns.open_questions.turns == {}


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), ValueError("bug")])
async def test_an_ending_that_was_lost_is_owed(fault: Exception) -> None:
    turns = FakeTurns([event(1, "turn.queued", position=0), fault])
    await ask(turns)
    assert list(turns.open_questions.turns.values()) == [turns.create_turn_id()[:-1] + "0"]


async def test_an_answer_that_is_owed_is_given_without_another_run() -> None:
    turns = owed(FakeTurns(passed("Gut.")))
    answer = await ask(turns)
    assert turns.submitted == []
    assert answer.headers["x-turn-id"] == TURN_ID
    assert answer.text.count('"delta":"Gut."') == 1


async def test_an_answer_nobody_came_for_is_not_kept_for_ever() -> None:
    turns = owed(FakeTurns(passed("Gut.")))
    turns.finished_at = time.time() - 901
    await ask(turns)
    assert len(turns.submitted) == 1


async def test_a_turn_without_an_answer_is_run_again() -> None:
    turns = owed(FakeTurns([finished(1, "error", error={"message": "m"})]))
    await ask(turns)
    assert len(turns.submitted) == 1


async def test_a_store_that_forgets_nothing_spoils_no_answer() -> None:
    turns = FakeTurns(passed("Gut."))

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    turns.open_questions.forget_question = away  # type: ignore[method-assign,assignment]
    answer = await ask(turns)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "error" not in answer.text


async def test_an_idempotency_key_alone_says_what_is_a_repeat() -> None:
    turns = FakeTurns(passed("Gut."))
    async with caller(app_with(turns)) as http:
        await http.post("/v1/chat/completions", json=BODY, headers={**CHAT_PAGE, "idempotency-key": "k"})
    assert turns.keys == ["k"]


# The box below a message without an answer: a plain sentence first, then why, what to do, and the names last.

TWO_ADRS = "# ADR-001: Eins\n\n## Kontext\n\nText.\n\n# ADR-002: Zwei\n\n## Kontext\n\nText.\n"


def data(outcome: str, attempts: int = 1, **error: Any) -> TurnFinished:
    end = finished(1, outcome, error=error).body
    assert isinstance(end, TurnFinished)
    return replace(end, attempts=attempts)


def issue(message: str, code: str = "MISSING_ADR_SECTION", **more: Any) -> dict[str, Any]:
    return {"code": code, "message": message, "severity": "error", **more}


def test_duplicates_are_merged_and_say_which_adr() -> None:
    issues = [found.to_dict() for found in ADRStructureValidator().validate(TWO_ADRS, {})]
    text = format_failure(data("failed", 3, code="failed", issues=issues), "de", "turn-1")
    assert text.startswith("Auch nach 3 Versuchen hat keine Antwort die Prüfung bestanden. Zuletzt beanstandet: ")
    assert "(ADR-001: Eins, ADR-002: Zwei)" in text
    assert len(issues) > 2 * text.count(";")
    assert "\n" not in text, "Open WebUI shows one paragraph"
    assert text.endswith("turn-1)")


def test_what_is_found_twice_in_the_same_place_is_counted() -> None:
    twice = format_failure(data("failed", issues=[issue("Es fehlt etwas."), issue("Es fehlt etwas.")]), "de", "turn-1")
    assert "Zuletzt beanstandet: Es fehlt etwas (2×)." in twice
    assert twice.count("MISSING_ADR_SECTION") == 1
    in_file = format_failure(data("failed", issues=[issue("Es fehlt etwas", file="ADR-7.md")]), "de", "turn-1")
    assert "Es fehlt etwas (ADR-7.md)" in in_file
    many = format_failure(data("failed", issues=[issue(f"Fehler {n}") for n in range(9)]), "en", "turn-1")
    assert "and 3 more" in many
    warned = format_failure(data("failed", issues=[issue("x", severity="warning"), issue("y")]), "en", "turn-1")
    assert "Errors in the last attempt: y." in warned


@pytest.mark.parametrize(
    ("outcome", "code", "advice"),
    [
        ("failed", "failed", "oder formuliere sie anders"),
        ("incomplete", "incomplete", "Stelle die Frage noch einmal"),
        ("error", "transient", "später erneut"),
        ("error", "permanent", "Administrator"),
        ("error", "config", "Administrator"),
        ("error", "limit", "kleinere Aufgabe"),
        ("error", "session_lost", "erneut"),
        ("expired", "expired", "weniger auf einmal"),
        ("dead", "dead", "Administrator"),
        ("failed", "undecided", "erneut"),
        ("error", "of a newer version", "Administrator"),
    ],
)
def test_the_advice_fits_the_kind_of_failure(outcome: str, code: str, advice: str) -> None:
    text = format_failure(data(outcome, code=code, reason="HTTP 529: <internal>"), "de", "turn-1")
    assert advice in text
    assert "HTTP 529" not in text
    assert "[ENFORCEMENT" not in text


def test_the_reason_of_a_person_and_of_a_break_are_in_it() -> None:
    message = rejection_message(
        "de", ["FALSCH: So nicht"], note="Bitte\n- mit Kosten\n- mit Zeiten.\n", timed_out=False
    )
    text = format_failure(data("failed", code="rejected", message=message), "de", "turn-1")
    assert text == (
        "Ein Mensch hat das Ergebnis abgelehnt: Bitte - mit Kosten - mit Zeiten. "
        "Stelle die Frage noch einmal („Neu generieren“), oder formuliere sie anders. (turn-1)"
    )
    message = rejection_message("en", [], note=" ", timed_out=False)
    text = format_failure(data("failed", code="rejected", message=message), "en", "turn-1")
    assert text == "A person rejected the result. Ask again (Regenerate), or rephrase the question. (turn-1)"
    message = "Der Agent hat seine Antwort nicht zu Ende gebracht:\n- er brach vorzeitig ab.\nBitte versuche es erneut."
    text = format_failure(data("incomplete", code="incomplete", message=message), "de", "turn-1")
    assert text == (
        "Der Agent hat seine Antwort nicht zu Ende gebracht. Er brach vorzeitig ab. "
        "Stelle die Frage noch einmal („Neu generieren“). (turn-1)"
    )


def test_the_turn_is_named_and_not_linked_since_its_page_wants_a_sign_in() -> None:
    assert format_failure(data("failed"), "en", "turn-1").endswith("(turn-1)")


def test_a_refusal_without_words_and_one_with_them_are_told_once() -> None:
    for said, shown in (("", ""), ("I will not.", "I will not. ")):
        reason = refusal_verdict(said, {}, filtered=False).reason
        error = ending_message("refused", "en", [explain_break("refused", "en", reason)], "refused")
        text = format_failure(data("refused", code="refused", message=error), "en", "turn-1")
        assert text == f"The model refused the request. {shown}Rephrase the question, or ask another model. (turn-1)"
    filtered = refusal_verdict("", {}, filtered=True).reason
    error = ending_message("refused", "en", [explain_break("filtered", "en", filtered)], "refused")
    assert "stopped the answer. Rephrase" in format_failure(
        data("refused", code="refused", message=error), "en", "turn-1"
    )
