"""What a chat client receives for a turn's events. The referee is OpenAI's own chunk type."""

import itertools
import json
import math
from typing import Any

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseUsage

from api_client.contract.events import RESET, Event
from api_client.contract.growing_text import VisibleText
from api_client.contract.step_marker import PATTERN, read_spans
from api_client.contract.turn_error import TurnError
from api_client.web.bodies.models import StreamMode
from api_client.web.errors import ApiError
from api_client.web.openwebui.front_matter import HeaderFencer, fence_headers, unfence_headers
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import Reply, make_opening, make_turn_error
from api_client.web.streaming.reply_forms import LivePage, PageReply, make_page_reply
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.wire import data_frame, encode_json, event_frame
from tests.event_table import KINDS
from tests.growth import assert_linear
from tests.unit.web.conftest import caller
from tests.unit.web.fake import EPOCH, FakeTurns, app_with, event, finished, passed
from tests.unit.web.openwebui import Reader
from worker.enforcement import strip_marker
from worker.enforcement.documents.step import marker_spans

PLAIN = Reply(turn_id="turn-1", model="scripted", created=1, locale="de")
OPEN_WEBUI = Reply(turn_id="turn-1", model="scripted", created=1, locale="de", from_open_webui=True)

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
    return [make_opening(reply), *(payload for item in events if item for payload in page.render(item))]


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
    assert {payload["id"] for payload in sent} == {"chatcmpl-turn-1"}


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
    english = Reply(turn_id="turn-1", model="scripted", created=1, locale="en", from_open_webui=True)
    lines = [line for line, _ in lines_of(payloads(LONG_WAY, english))]
    assert lines[0] == "2 of your questions are ahead of this one"
    assert "Asking again 1/2: something is still missing in the ADR" in lines
    assert lines[-1] == "Checked, completed automatically: Schritt 'what' ergänzt"


@pytest.mark.parametrize(
    ("pages", "where"),
    [("", "turns inbox show turn-1"), ("https://turns.example", "https://turns.example/turns/turn-1")],
)
def test_who_has_to_decide_is_told_where(pages: str, where: str) -> None:
    english = Reply(turn_id="turn-1", model="scripted", created=1, locale="en", from_open_webui=True, pages_url=pages)
    asked = event(1, "turn.suspended", turn_id="turn-1", interruption={"kind": "verdict"})
    lines = lines_of(PageReply(english).render(asked))
    assert lines == [(f"A person has to decide: {where}", False)]


@pytest.mark.parametrize(
    ("who", "pages", "line"),
    [
        ("owner", "https://t.example", "The agent asks whether it may do something: answer below, yes or no"),
        ("signed_in", "https://t.example", "The agent asks whether it may do something: answer below, yes or no"),
        (
            "operator",
            "https://t.example",
            "The agent asks whether it may do something. Yes or no: https://t.example/turns/turn-1",
        ),
        ("owner", "", "The agent asks whether it may do something. Yes or no: turns inbox show turn-1"),
    ],
)
def test_the_status_says_where_a_question_is_answered_and_nothing_of_its_call(who: str, pages: str, line: str) -> None:
    english = Reply(turn_id="turn-1", model="scripted", created=1, locale="en", from_open_webui=True, pages_url=pages)
    call = {"call": "c", "tool": "Bash", "digest": "d", "arguments": {"command": "x"}}
    question = {"kind": "tool_call", "asked": call, "who": who, "delivery": 1}
    asked = event(1, "turn.suspended", turn_id="turn-1", interruption=question)
    assert lines_of(PageReply(english).render(asked)) == [(line, False)]


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        (["MISSING_STEP_MARKER"], "the working step is not stated"),
        (["MISSING_STEP_MARKER", "FILE_NOT_FOUND"], "the answer names a wrong file"),
        (["HOUSE_RULE"], "the answer does not meet the rules yet"),
        ([], "the answer does not meet the rules yet"),
    ],
)
def test_the_reason_told_is_the_one_that_says_most(codes: list[str], reason: str) -> None:
    english = Reply(turn_id="turn-1", model="scripted", created=1, locale="en", from_open_webui=True)
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
    own_words = make_turn_error(outcome, TurnError(message="Das Wort des Turns."), "de")
    assert own_words.message.endswith("Das Wort des Turns.")
    assert own_words.message.startswith("[ENFORCEMENT ERROR]\n") == (outcome == "failed")
    for locale in ("de", "en"):
        error: ApiError = make_turn_error(outcome, None, locale)
        assert (error.status, error.code) == (status, outcome)
        assert error.headers == {"x-should-retry": "false"}
        assert len(error.message) > 20
    assert make_turn_error(outcome, None, "de").message != make_turn_error(outcome, None, "en").message


def test_the_whole_completion_is_one_of_openais() -> None:
    text = "Antwort <!-- STEP: done -->"
    completion = PLAIN.make_completion(text, read_spans(None, text))
    assert ChatCompletion.model_validate(completion, strict=True).choices[0].message.content == "Antwort"


# Frames that no reader can split in the wrong place, and markers that do not show.

TRICKY = "a\rb\r\nc\n\ndata: x\n\nevent: y\u0085d\u2028e\u2029f\x0bg\x0ch\x1ci\x00"


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), max_size=200))
def test_a_frame_is_one_line_and_reads_back(text: str) -> None:
    frame = data_frame({"text": text})
    assert frame.endswith(b"\n\n")
    body = frame.decode().removesuffix("\n\n")
    assert len(body.splitlines()) == 1
    assert json.loads(body.removeprefix("data: ")) == {"text": text}


def test_line_ends_of_every_kind_stay_inside_the_string() -> None:
    assert len(encode_json(TRICKY).decode().splitlines()) == 1
    assert json.loads(encode_json(TRICKY)) == TRICKY


def test_half_a_surrogate_becomes_an_escape() -> None:
    assert encode_json("\ud800") == b'"\\ud800"'


def test_umlauts_travel_as_they_are() -> None:
    assert encode_json("ä") == '"ä"'.encode()


def test_a_named_event_carries_its_id() -> None:
    assert event_frame("turn.queued", {"a": 1}, "1-abc") == b'id: 1-abc\nevent: turn.queued\ndata: {"a":1}\n\n'


# The step marker never shows in an answer that is still growing, and each reader ends with the answer itself.

ANSWER = "Erst so.\n\n<!-- STEP: what -->\nDann so: `<!-- STEP: x -->` <b>fett</b>\n\n<!-- STEP: why -->\n"
SHOWN = "Erst so.\n\nDann so: `<!-- STEP: x -->` <b>fett</b>"

MARKERS = ["<!-- STEP: what -->", "<!-- step:x -->"]

fragments = st.sampled_from(
    [*"<!-:`> \n\t", "<!--", "<!-", "STEP", "-->", "\n\n", "```", "~~~", "Wort ", "\r\n", "<b>", "- ", *MARKERS]
)


def shown_piece_by_piece(pieces: list[str]) -> list[str]:
    visible, seen = VisibleText(), [""]
    for piece in pieces:
        seen.append(seen[-1] + visible.feed(piece))
    return seen


@pytest.mark.parametrize("cut", range(1, 9))
@pytest.mark.parametrize("tag", ['<part id="286555-2">', '<part id="0a1b2c">'])
def test_the_tags_around_a_part_never_show_wherever_the_stream_is_cut(tag: str, cut: int) -> None:
    text = f"{tag}\n## Kontext\nWir <p> brauchen `</part>` hier.\n</part>\nDanach."
    seen = shown_piece_by_piece([text[at : at + cut] for at in range(0, len(text), cut)])
    assert seen[-1] == "## Kontext\nWir <p> brauchen `</part>` hier.\nDanach."
    assert all(seen[-1].startswith(each) for each in seen), "what was shown stays"


BROKEN = ["<!-- STEP:\nwhat -->", "<!--\nSTEP: what\n-->", "<!-- STEP: wh\r\nat -->", "<!--\n\nSTEP\n:\nx\n-->"]


@pytest.mark.parametrize("marker", BROKEN)
@pytest.mark.parametrize("before", ["Erst so. ", "Erst so.\n\n", "```\ncode\n```\n"])
def test_a_marker_broken_over_lines_and_pieces_never_shows(marker: str, before: str) -> None:
    text = f"{before}{marker}\nDann so."
    for size in range(1, 12):
        shown = shown_piece_by_piece([text[start : start + size] for start in range(0, len(text), size)])
        assert not any("<!" in seen or "STEP" in seen for seen in shown)
        assert shown[-1] == shown_piece_by_piece([text])[-1]
        assert shown[-1].endswith("Dann so.")


def test_markers_in_quotes_and_fences_of_a_draft_are_shown_as_they_come() -> None:
    text = "> Zitat <!-- STEP: what --> x\n\n```\n<!-- STEP: why -->\n```\nEnde <!-- STEP: x -->"
    assert shown_piece_by_piece(list(text))[-1] == text.removesuffix(" <!-- STEP: x -->")


def test_what_only_began_like_a_marker_is_shown_line_by_line() -> None:
    text = "<!-- STEP:\n```\na > b\n<!-- STEP: x -->\n```\nEnde <!-- STEP: y -->"
    assert shown_piece_by_piece(list(text))[-1] == "<!-- STEP:\n```\na > b\n<!-- STEP: x -->\n```\nEnde"


def test_letter_by_letter_no_part_of_a_marker_is_seen() -> None:
    for seen in shown_piece_by_piece(list(ANSWER)):
        assert SHOWN.startswith(seen)
    assert seen == SHOWN


def test_text_that_is_no_marker_is_not_held_back() -> None:
    assert shown_piece_by_piece(["a < b, ", "<p>, <!-- ", "Notiz --> c"]) == [
        "",
        "a < b,",
        "a < b, <p>,",
        "a < b, <p>, <!-- Notiz --> c",
    ]
    assert shown_piece_by_piece(["<!-- STEP: " + "x" * 300])[-1].startswith("<!-- STEP")  # longer than any marker


pieces_of_texts = st.lists(fragments | st.text(max_size=3), max_size=25)


@settings(max_examples=400, deadline=None)
@example(["````a ", "<!-- STEP: x -->", " `"])
@example([" ", "<!-- STEP: what -->", " ", "\n", "a"])
@given(pieces_of_texts)
def test_it_does_not_matter_into_which_pieces_a_growing_answer_is_cut(pieces: list[str]) -> None:
    text, seen = "".join(pieces), shown_piece_by_piece(pieces)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
    tail = ">\n" + "\n" * 12 + "Ende.\n"  # whatever was held back because it might be a marker is decided by now
    ends = {shown_piece_by_piece(cut)[-1] for cut in ([*pieces, tail], [text + tail], [*text, *tail])}
    assert len(ends) == 1


def finish(text: str, reply: Reply, mode: StreamMode, pieces: list[str]) -> Reader:
    """A reader's page after these pieces of a draft and the accepted answer."""
    page = make_page_reply(reply, mode)
    reader = Reader().read([make_opening(reply)])
    told = finished(len(pieces) + 2, "passed", response=text).data | {"markers": [list(s) for s in marker_spans(text)]}
    events = [("attempt.output", {"attempt": 1, "text": piece}) for piece in pieces] + [("turn.finished", told)]
    for seq, (kind, data) in enumerate([("attempt.started", {"attempt": 1}), *events], 1):
        reader.read(page.render(event(seq, kind, **data)))
    return reader


@settings(max_examples=400, deadline=None)
@example(["Beispiel:\n\n    <!-- STEP: what -->\n\nEnde\n<!-- STEP: done -->"], StreamMode.LIVE)
@example(["> Zitat <!-- STEP: what -->\n\nEnde\n<!-- STEP: done -->"], StreamMode.VALIDATED)
@example(["a", "<!-- STEP: what -->", "<!-- STEP: what -->", "\n", "b"], StreamMode.LIVE)
@given(pieces_of_texts, st.sampled_from(StreamMode))
def test_the_relays_text_is_the_answer_but_for_its_own_marker_streamed_or_not(
    pieces: list[str], mode: StreamMode
) -> None:
    text = "".join(pieces)
    expected = strip_marker(text)  # the worker's word on it
    plain, webui = (
        Reply(turn_id="turn-1", model="m", created=1, locale="de", from_open_webui=status) for status in (False, True)
    )
    assert finish(text, plain, mode, pieces).text == expected
    assert plain.make_completion(text, marker_spans(text))["choices"][0]["message"]["content"] == expected
    drawn = finish(text, webui, mode, pieces).text
    assert drawn == webui.make_completion(text, marker_spans(text))["choices"][0]["message"]["content"]
    assert PATTERN.sub("", drawn).split() == PATTERN.sub("", expected).split()


@pytest.mark.long
@pytest.mark.parametrize(
    "killer", ["<!-- STEP: ", "<", "<!--" + " " * 200, "a\n", "<!-- STEP:\n\n\n", "<!-- STEP: a\n--> "]
)
def test_twice_the_text_takes_about_twice_the_time(killer: str) -> None:
    texts = {size: killer * (size * 100_000 // len(killer)) for size in (1, 2)}
    assert_linear(lambda size: shown_piece_by_piece(pieces(texts[size])))


def pieces(text: str) -> list[str]:
    return [text[start : start + 1000] for start in range(0, len(text), 1000)]


# A YAML header is a block on a page, and byte for byte itself everywhere else.

HEADER = '---\nadr_id: "043"\ntitle: "Grüße"\nstatus: Proposed\n---'
ADR = f"{HEADER}\n\n# ADR-043: Cache\n\n---\n\nText.\n"
FENCED = f"````yaml\n{HEADER}\n````\n\n# ADR-043: Cache\n\n---\n\nText.\n"
OTHERS = [
    "",
    "Text.",
    "---\n\nText\n---\n",
    "```yaml\n---\na: b\n---\n```\n",
    "---\na: b\n",
    "a\n---\n",
]
SECOND = HEADER.replace("043", "044")
TWO, TWO_SHOWN = f"{ADR}\n{SECOND}\n\n# ADR-044: Queue\n", f"{FENCED}\n````yaml\n{SECOND}\n````\n\n# ADR-044: Queue\n"
LATER = [
    f"Text\n{SECOND}\n",  # no empty line before it: what stands there is a heading
    f"```\n\n{SECOND}\n```\n",
    "Text\n\n---\nHinweis: nichts\n---\n",
    "Text\n\n---\nadr_id: 1\n\nText\n\n---\n",
    "Text\n\n---\nadr_id: 1\n",
]
WHOLE = [ADR, TWO, "Hier:\n\n" + TWO]
BREAKS, KEYS = ["\n", "\n\n", "\r\n", " "], ["-", "---", "a: b", "adr_id: 1", "\n\n---\nadr_id: 1\n---\n"]
pieces_of_text = st.sampled_from([*BREAKS, *KEYS, "````", "````yaml\n", "```", "Text"])
texts = st.lists(pieces_of_text, max_size=12).map("".join) | st.sampled_from([*WHOLE, HEADER, *OTHERS, *LATER])


def test_a_header_is_fenced_and_nothing_else_changes() -> None:
    assert fence_headers(ADR) == FENCED
    assert fence_headers("\n" + ADR) == "\n" + FENCED
    assert fence_headers(HEADER) == f"````yaml\n{HEADER}\n````"


def test_the_header_of_each_further_adr_is_fenced_too() -> None:
    assert fence_headers(TWO) == TWO_SHOWN
    assert fence_headers("Hier:\n\n" + TWO) == "Hier:\n\n" + TWO_SHOWN
    assert fence_headers(TWO.replace("\n", "\r\n")).count("````yaml") == 2
    assert unfence_headers(TWO_SHOWN) == TWO


@pytest.mark.parametrize("text", [*OTHERS, *LATER])
def test_what_is_no_header_stays_as_it_is(text: str) -> None:
    assert fence_headers(text) == text


@given(texts)
def test_what_comes_back_is_what_was_sent(text: str) -> None:
    if unfence_headers(text) == text:  # an agent that writes our own fence is not one we know
        assert unfence_headers(fence_headers(text)) == text
    assert fence_headers(fence_headers(text)) == fence_headers(text)


@given(texts, st.lists(st.integers(1, 9), max_size=40))
def test_a_header_that_streams_is_fenced_the_same_way_however_it_is_cut(text: str, sizes: list[int]) -> None:
    growing, shown, rest = HeaderFencer(), "", text
    for size in [*sizes, len(text)]:
        shown, rest = shown + growing.feed(rest[:size]), rest[size:]
    whole = HeaderFencer()
    assert shown == whole.feed(text)
    if text in WHOLE:
        assert shown == fence_headers(text)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_header_inside_of_code_streams_as_it_is(size: int) -> None:
    text = f"So:\n\n```\n\n{SECOND}\n```\n\n~~~yaml\n\n{SECOND}\n~~~\n"
    growing = HeaderFencer()
    assert (
        "".join(growing.feed(text[at : at + size]) for at in range(0, len(text), size)) == text == fence_headers(text)
    )


def test_a_draft_that_was_stopped_inside_its_header_comes_back_whole() -> None:
    growing = HeaderFencer()
    half = HEADER[:30]
    assert growing.feed(half) == f"````yaml\n{half}"
    assert unfence_headers(f"````yaml\n{half}") == half


def test_a_page_shows_the_block_while_it_streams_and_stores_it() -> None:
    events: list[Event] = [event(1, "attempt.started", attempt=1, delivery=1)]
    events += [event(2 + at, "attempt.output", attempt=1, text=letter) for at, letter in enumerate(ADR)]
    events.append(finished(900, "passed", response=f"{ADR}\n<!-- STEP: done -->"))
    page = LivePage(Reply(turn_id="turn-1", model="m", created=1, locale="de", from_open_webui=True))
    reader = Reader().read([payload for item in events for payload in page.render(item)])
    stored = FENCED.rstrip()
    assert (reader.text, reader.completed) == (stored, [stored])
    assert all(FENCED.startswith(seen) for seen in reader.seen), "nothing was shown that had to be taken back"


def test_programs_get_the_header_as_it_is() -> None:
    sent: list[Any] = PageReply(Reply(turn_id="turn-1", model="m", created=1, locale="de")).render(
        finished(1, "passed", response=ADR)
    )
    assert "".join(payload["choices"][0]["delta"].get("content", "") for payload in sent) == ADR
    events = [event(1, "attempt.started", attempt=1, delivery=1), event(2, "attempt.output", attempt=1, text=ADR)]
    live = LivePage(Reply(turn_id="turn-1", model="m", created=1, locale="de"))
    reader = Reader().read([payload for item in events for payload in live.render(item)])
    assert reader.text.rstrip() == ADR.rstrip(), "also in a draft that streams"


async def test_a_history_and_a_continue_hold_the_answer_that_was_accepted(turns: FakeTurns) -> None:
    page = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": ""}
    said = [{"role": "user", "content": FENCED}, {"role": "assistant", "content": FENCED}]
    body = {"model": "scripted", "messages": [*said, {"role": "user", "content": "Weiter"}]}
    async with caller(app_with(turns)) as http:
        await http.post("/v1/chat/completions", json=body, headers=page)
        await http.post("/v1/chat/completions", json={**body, "messages": said}, headers=page)
        await http.post("/v1/chat/completions", json=body)
    history, go_on, program = ([message["content"] for message in request.messages] for request in turns.submitted)
    assert history[:2] == [FENCED, ADR], "only what the agent said was shown so"
    assert go_on[1] == ADR
    assert program[1] == FENCED


def test_a_header_that_would_end_the_fence_is_left_as_it_is() -> None:
    text = "---\na: |\n  x\n````\n---\nText"
    assert fence_headers(text) == text


# What a turn used reaches every client: real numbers over all attempts, zeros otherwise, never null.

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}


def used(given: int, made: int, cost: float = 0.0) -> dict[str, float]:
    return {"input_tokens": given, "output_tokens": made, "cost_usd": cost}


#: A worker that stopped, a run that broke off, an answer that was rejected, and one that passed.
USING_TOKENS: list[Event | None] = [
    event(1, "turn.queued", position=0),
    event(2, "attempt.started", attempt=1, delivery=1),
    event(3, "attempt.lost", attempt=1, delivery=1, usage=used(1, 1)),
    event(4, "attempt.started", attempt=1, delivery=2),
    event(5, "attempt.completed", attempt=1, verdict="incomplete", usage=used(10, 2, 0.25)),
    event(6, "attempt.started", attempt=2, delivery=3),
    event(7, "attempt.completed", attempt=2, verdict="complete", usage=used(100, 20, 0.5)),
    event(8, "attempt.rejected", attempt=2, issues=[]),
    event(9, "attempt.started", attempt=3, delivery=4),
    event(10, "attempt.completed", attempt=3, verdict="complete", usage=used(1000, 200, 1.0)),
    event(11, "attempt.accepted", attempt=3, issues=[]),
    finished(12, "passed_after_retry", response="Antwort"),
]
DETAILS = {"attempts": 3, "failed_tokens": 2 + 12 + 120, "cost_usd": 1.75}


async def post(script: list[Event | None], path: str, body: dict[str, Any]) -> httpx2.Response:
    async with caller(app_with(FakeTurns(script))) as http:
        return await http.post(path, json=body)


async def test_a_completion_says_what_all_attempts_used() -> None:
    answer = (await post(USING_TOKENS, "/v1/chat/completions", CHAT)).json()
    usage = CompletionUsage.model_validate(answer["usage"], strict=True)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1111, 223, 1334)
    assert answer["usage"]["turn_details"] == DETAILS


async def test_an_agent_that_reports_nothing_used_zero_and_not_null() -> None:
    answer = (await post(passed("Hallo."), "/v1/chat/completions", CHAT)).json()
    assert CompletionUsage.model_validate(answer["usage"]).model_dump()["total_tokens"] == 0
    assert answer["usage"]["turn_details"] == {"attempts": 1, "failed_tokens": 0, "cost_usd": 0.0}


async def test_a_stream_ends_with_what_was_used_where_it_is_asked_for() -> None:
    for asked, mode in [(True, "validated"), (True, "draft"), (False, "validated")]:
        body = {**CHAT, "stream": True, "stream_mode": mode, "stream_options": {"include_usage": asked}}
        *frames, done, _ = (await post(USING_TOKENS, "/v1/chat/completions", body)).text.split("\n\n")
        chunks = [ChatCompletionChunk.model_validate_json(frame.removeprefix("data: ")) for frame in frames]
        assert done == "data: [DONE]"
        assert [chunk.usage is not None for chunk in chunks[-2:]] == [False, asked]
        if asked:
            assert chunks[-1].choices == []
            assert chunks[-1].usage
            assert chunks[-1].usage.total_tokens == 1334


@pytest.mark.parametrize("mode", StreamMode)
async def test_a_stream_that_ends_with_a_refusal_says_what_was_used_and_one_with_an_error_does_not(
    mode: StreamMode,
) -> None:
    body = {**CHAT, "stream": True, "stream_mode": mode, "stream_options": {"include_usage": True}}
    for outcome, key in (("refused", "usage"), ("failed", "error")):
        script = [*USING_TOKENS[:-2], finished(11, outcome, error={"message": "Nein."})]
        *frames, _, _ = (await post(script, "/v1/chat/completions", body)).text.split("\n\n")
        chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        assert [key for key in ("usage", "error") if key in chunks[-1]] == [key], chunks[-1]
        assert chunks[-1].get("usage", {"total_tokens": 1334})["total_tokens"] == 1334


async def test_a_response_says_it_too_however_it_is_read() -> None:
    whole = (await post(USING_TOKENS, "/v1/responses", {"model": "scripted", "input": "Hallo"})).json()
    usage = ResponseUsage.model_validate(whole["usage"], strict=True)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1111, 223, 1334)
    assert whole["usage"]["turn_details"] == DETAILS
    streamed = await post(USING_TOKENS, "/v1/responses", {"model": "scripted", "input": "Hallo", "stream": True})
    last = json.loads(streamed.text.strip().splitlines()[-1].removeprefix("data: "))
    async with caller(app_with(FakeTurns(USING_TOKENS))) as http:
        read = (await http.get(f"/v1/responses/{whole['id']}")).json()
    assert last["response"]["usage"] == read["usage"] == whole["usage"]


async def test_a_response_that_is_not_done_yet_has_numbers_too() -> None:
    body = {"model": "scripted", "input": "Hallo", "background": True}
    answer = (await post(USING_TOKENS[:2], "/v1/responses", body)).json()
    usage = Response.model_validate(answer).usage
    assert usage is not None
    assert usage.total_tokens == 0


async def test_a_background_request_costs_nothing() -> None:
    async with caller(app_with(FakeTurns())) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT, headers={"x-owui-task": "title_generation"})
    assert answer.json()["usage"]["total_tokens"] == 0


async def test_stream_options_must_be_an_object() -> None:
    refused = await post(passed("a"), "/v1/chat/completions", {**CHAT, "stream_options": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options")


def test_a_log_that_begins_anew_is_not_counted_twice() -> None:
    spent = TurnUsage()
    told = [item for item in USING_TOKENS if item]
    again = Event(seq=0, epoch=EPOCH, at=1, kind=RESET, data={})
    for item in [*told, again, *told]:
        spent.add_event(item)
    assert spent.chat_usage()["total_tokens"] == 1334
