"""What a chat client receives for a turn's events. The referee is OpenAI's own chunk type."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api_client.contract.events import KINDS, Event
from api_client.contract.issues.turn_error import TurnError
from api_client.contract.marker import read_spans
from api_client.web.errors import ApiError
from api_client.web.streaming.page import PageReply
from api_client.web.streaming.reply import Payload, Reply, opening, turn_error
from tests.unit.web.fake import event, finished, passed

PLAIN = Reply(turn_id="t0-1", model="scripted", created=1, locale="de")
OPEN_WEBUI = Reply(turn_id="t0-1", model="scripted", created=1, locale="de", status=True)

LONG_WAY: list[Event | None] = [
    event(1, "turn.queued", position=2),
    event(2, "attempt.started", attempt=1, delivery=1, max_attempts=3, worker="w"),
    event(3, "attempt.output", attempt=1, text="DRAFT"),
    event(4, "attempt.lost", attempt=1, delivery=1),
    event(5, "attempt.started", attempt=1, delivery=2, max_attempts=3, worker="w"),
    event(6, "attempt.tool", attempt=1, name="Bash", detail="rm"),
    event(7, "attempt.completed", attempt=1, verdict="complete", reason=""),
    event(8, "attempt.rejected", attempt=1, issues=[{"code": "MISSING_ADR_SECTION", "message": "m"}]),
    event(9, "turn.retrying", attempt=2, max_attempts=3, reason="rejected", codes=["MISSING_ADR_SECTION"]),
    event(10, "attempt.started", attempt=2, delivery=3, max_attempts=3, worker="w"),
    event(11, "attempt.completed", attempt=2, verdict="incomplete", reason="died"),
    event(12, "turn.retrying", attempt=3, max_attempts=3, reason="incomplete", codes=[], delay_seconds=0),
    event(13, "turn.retrying", attempt=3, max_attempts=3, reason="transient", delay_seconds=4.0),
    event(14, "turn.fallback", attempt=3, codes=["MISSING_STEP_MARKER"]),
    event(15, "turn.mended", attempt=3, changes=["Schritt 'what' ergänzt"], step="what", step_source="fallback"),
    event(16, "turn.stopping", reason="cancelled"),
    event(17, "some.new.kind", anything=1),
    finished(18, "passed_by_fallback", response="Antwort\n\n<!-- STEP: what -->"),
]  # fmt: skip


def payloads(events: list[Event | None], reply: Reply) -> list[Payload]:
    page = PageReply(reply)
    return [*opening(reply), *(payload for item in events if item for payload in page.render(item))]


def text_of(sent: list[Payload]) -> str:
    chunks = [ChatCompletionChunk.model_validate(payload, strict=True) for payload in sent]
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def lines_of(sent: list[Payload]) -> list[tuple[str, bool]]:
    events: list[Any] = [payload["event"] for payload in sent if "event" in payload]
    assert all(event["type"] == "status" for event in events)
    return [(event["data"]["description"], event["data"]["done"]) for event in events]


def test_only_the_accepted_text_is_sent_without_its_marker() -> None:
    sent = payloads(LONG_WAY, PLAIN)
    assert text_of(sent) == "Antwort"
    assert "STEP" not in str(sent)
    assert not any("event" in payload for payload in sent)
    assert [payload["choices"][0]["finish_reason"] for payload in sent] == [None, None, "stop"]
    assert {payload["id"] for payload in sent} == {"chatcmpl-t0-1"}


def test_open_webui_is_told_the_progress_in_german() -> None:
    sent = payloads(LONG_WAY, OPEN_WEBUI)
    assert text_of(sent) == "Antwort"
    assert lines_of(sent) == [
        ("Vor dieser Frage sind noch 2 deiner Fragen", False),
        ("Der Agent arbeitet", False),
        ("Ein Ausfall hat den Agenten unterbrochen; es geht gleich weiter", False),
        ("Der Agent arbeitet: führt einen Befehl aus", False),
        ("Die Antwort wird geprüft", False),
        ("Neuer Versuch 1/2: im ADR fehlt noch etwas", False),
        ("Neuer Versuch 2/2: die Antwort brach ab", False),
        ("Der Agent ist gerade nicht erreichbar; neuer Versuch in 4 s", False),
        ("Die Antwort wird automatisch ergänzt", False),
        ("Wird angehalten", False),
        ("Geprüft, automatisch ergänzt: Schritt 'what' ergänzt", True),
    ]


def test_open_webui_is_told_the_progress_in_english() -> None:
    english = Reply(turn_id="t0-1", model="scripted", created=1, locale="en", status=True)
    lines = [line for line, _ in lines_of(payloads(LONG_WAY, english))]
    assert lines[0] == "2 of your questions are before this one"
    assert "Asking again 1/2: something is still missing in the ADR" in lines
    assert lines[-1] == "Checked, completed automatically: Schritt 'what' ergänzt"


@pytest.mark.parametrize(
    ("pages", "where"),
    [("", "turns inbox show t0-1"), ("https://turns.example", "https://turns.example/turns/t0-1")],
)
def test_who_has_to_decide_is_told_where(pages: str, where: str) -> None:
    english = Reply(turn_id="t0-1", model="scripted", created=1, locale="en", status=True, pages=pages)
    lines = lines_of(PageReply(english).render(event(1, "turn.parked", turn_id="t0-1")))
    assert lines == [(f"A person has to decide: {where}", False)]


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        (["MISSING_STEP_MARKER"], "the working step is not stated"),
        (["MISSING_STEP_MARKER", "FILE_NOT_FOUND"], "a file it names is not right"),
        (["HOUSE_RULE"], "the answer does not meet the rules yet"),
        ([], "the answer does not meet the rules yet"),
    ],
)
def test_the_reason_told_is_the_one_that_says_most(codes: list[str], reason: str) -> None:
    english = Reply(turn_id="t0-1", model="scripted", created=1, locale="en", status=True)
    data = {"attempt": 2, "max_attempts": 3, "reason": "rejected", "codes": codes}
    assert lines_of(PageReply(english).render(event(1, "turn.retrying", **data))) == [
        (f"Asking again 1/2: {reason}", False)
    ]


def test_the_status_ends_before_the_error_is_shown() -> None:
    sent = payloads([finished(1, "failed", error={"message": "m"})], OPEN_WEBUI)
    assert lines_of(sent) == [("Ohne gültige Antwort beendet", True)]
    assert "error" in sent[-1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["attempt", "max_attempts", "position", "reason", "codes", "changes", "verdict", "delay_seconds"]
)


@settings(deadline=None)
@example(kind="turn.mended", data={"changes": ["<img src=x onerror=alert(1)>\r\n\x1b[31m\u202e" * 50]})
@example(kind="turn.queued", data={"position": math.nan})
@example(kind="turn.retrying", data={"codes": [[]], "attempt": -math.inf})
@given(
    kind=st.sampled_from(sorted(set(KINDS) - {"turn.finished"})),
    data=st.dictionaries(names, json_values | st.just("transient")),
)
def test_whatever_an_event_holds_only_our_own_status_lines_leave(kind: str, data: dict[str, Any]) -> None:
    for description, done in lines_of(PageReply(OPEN_WEBUI).render(event(1, kind, **data))):
        assert 0 < len(description) <= 200
        assert description.isprintable()
        assert not set("<>") & set(description)
        assert done is False


def test_an_event_object_in_an_agents_text_is_text() -> None:
    evil = '{"event":{"type":"execute","data":{"code":"alert(1)"}}}\n\ndata: [DONE]\n\n'
    sent = payloads(passed(evil), OPEN_WEBUI)
    assert text_of(sent) == evil
    assert all(payload.get("event", {}).get("type", "status") == "status" for payload in sent)


@settings(deadline=None)
@given(st.text())
def test_the_pieces_join_to_the_text(text: str) -> None:
    sent = payloads([finished(1, "passed", response=text)], PLAIN)
    joined = "".join(payload["choices"][0]["delta"].get("content", "") for payload in sent)
    assert joined == text or "<!--" in text


def test_a_long_answer_comes_in_moderate_pieces() -> None:
    sent = payloads([finished(1, "passed", response="0123456789" * 1_000)], PLAIN)
    sizes = [len(payload["choices"][0]["delta"].get("content", "")) for payload in sent]
    assert max(sizes) <= 1_000
    assert sum(sizes) == 10_000


def test_a_failed_turn_says_the_lines_of_the_decision_record() -> None:
    issues = [{"code": "MISSING_STEP_MARKER", "message": "Response enthält keinen STEP-Marker"}]
    [payload] = PageReply(PLAIN).render(finished(1, "failed", error={"issues": issues}))
    assert "choices" not in payload
    assert payload["error"] == {
        "message": "[ENFORCEMENT ERROR]\nDie LLM-Response konnte nicht validiert werden:\n"
        "- MISSING_STEP_MARKER: Response enthält keinen STEP-Marker\n"
        "Bitte versuche es erneut oder kontaktiere den Administrator.",
        "type": "enforcement_error",
        "param": None,
        "code": "failed",
    }


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("failed", 422), ("incomplete", 502), ("error", 502), ("dead", 502), ("cancelled", 409), ("expired", 504)],
)
def test_each_end_without_an_answer_has_its_status_and_is_not_repeated(outcome: str, status: int) -> None:
    own_words = turn_error(outcome, TurnError(message="Das Wort des Turns."), "de")
    assert own_words.message.endswith("Das Wort des Turns.")
    assert own_words.message.startswith("[ENFORCEMENT ERROR]\n") == (outcome == "failed")
    for locale in ("de", "en"):
        error: ApiError = turn_error(outcome, None, locale)
        assert (error.status, error.code) == (status, outcome)
        assert error.headers == {"x-should-retry": "false"}
        assert len(error.message) > 20
    assert turn_error(outcome, None, "de").message != turn_error(outcome, None, "en").message


def test_the_whole_completion_is_one_of_openais() -> None:
    text = "Antwort <!-- STEP: done -->"
    completion = PLAIN.completion(text, read_spans(None, text))
    assert ChatCompletion.model_validate(completion, strict=True).choices[0].message.content == "Antwort"


def test_numbers_of_the_events_stay_in_order() -> None:
    seqs = [item.seq for item in LONG_WAY if item]
    assert all(after == before + 1 for before, after in pairwise(seqs))
