"""A YAML header is a block on a page, and byte for byte itself everywhere else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.events import Event
from api_client.web.openwebui.front_matter import GrowingHeader, fenced, unfenced
from api_client.web.streaming.page import LivePage, PageReply
from api_client.web.streaming.reply import Reply
from tests.unit.web.conftest import caller
from tests.unit.web.fake import FakeTurns, app_with, event, finished
from tests.unit.web.openwebui import Reader

HEADER = '---\nadr_id: "043"\ntitle: "Grüße"\nstatus: Proposed\n---'
ADR = f"{HEADER}\n\n# ADR-043: Cache\n\n---\n\nText.\n"
SHOWN = f"````yaml\n{HEADER}\n````\n\n# ADR-043: Cache\n\n---\n\nText.\n"
OTHERS = [
    "",
    "Text.",
    "---\n\nText\n---\n",
    "```yaml\n---\na: b\n---\n```\n",
    "---\na: b\n",
    "a\n---\n",
]
SECOND = HEADER.replace("043", "044")
TWO, TWO_SHOWN = f"{ADR}\n{SECOND}\n\n# ADR-044: Queue\n", f"{SHOWN}\n````yaml\n{SECOND}\n````\n\n# ADR-044: Queue\n"
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
    assert fenced(ADR) == SHOWN
    assert fenced("\n" + ADR) == "\n" + SHOWN
    assert fenced(HEADER) == f"````yaml\n{HEADER}\n````"


def test_the_header_of_each_further_adr_is_fenced_too() -> None:
    assert fenced(TWO) == TWO_SHOWN
    assert fenced("Hier:\n\n" + TWO) == "Hier:\n\n" + TWO_SHOWN
    assert fenced(TWO.replace("\n", "\r\n")).count("````yaml") == 2
    assert unfenced(TWO_SHOWN) == TWO


@pytest.mark.parametrize("text", [*OTHERS, *LATER])
def test_what_is_no_header_stays_as_it_is(text: str) -> None:
    assert fenced(text) == text


@given(texts)
def test_what_comes_back_is_what_was_sent(text: str) -> None:
    if unfenced(text) == text:  # an agent that writes our own fence is not one we know
        assert unfenced(fenced(text)) == text


@given(texts, st.lists(st.integers(1, 9), max_size=40))
def test_a_header_that_streams_is_fenced_the_same_way_however_it_is_cut(text: str, sizes: list[int]) -> None:
    growing, shown, rest = GrowingHeader(), "", text
    for size in [*sizes, len(text)]:
        shown, rest = shown + growing.feed(rest[:size]), rest[size:]
    whole = GrowingHeader()
    assert shown == whole.feed(text)
    if text in WHOLE:
        assert shown == fenced(text)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_header_inside_of_code_streams_as_it_is(size: int) -> None:
    text = f"So:\n\n```\n\n{SECOND}\n```\n\n~~~yaml\n\n{SECOND}\n~~~\n"
    growing = GrowingHeader()
    assert "".join(growing.feed(text[at : at + size]) for at in range(0, len(text), size)) == text == fenced(text)


def test_a_draft_that_was_stopped_inside_its_header_comes_back_whole() -> None:
    growing = GrowingHeader()
    half = HEADER[:30]
    assert growing.feed(half) == f"````yaml\n{half}"
    assert unfenced(f"````yaml\n{half}") == half


def test_a_page_shows_the_block_while_it_streams_and_stores_it() -> None:
    events: list[Event] = [event(1, "attempt.started", attempt=1, delivery=1)]
    events += [event(2 + at, "attempt.output", attempt=1, text=letter) for at, letter in enumerate(ADR)]
    events.append(finished(900, "passed", response=f"{ADR}\n<!-- STEP: done -->"))
    page = LivePage(Reply(turn_id="t0-1", model="m", created=1, locale="de", status=True))
    reader = Reader().read([payload for item in events for payload in page.render(item)])
    stored = SHOWN.rstrip()
    assert (reader.text, reader.completed) == (stored, [stored])
    assert all(SHOWN.startswith(seen) for seen in reader.seen), "nothing was shown that had to be taken back"


def test_programs_get_the_header_as_it_is() -> None:
    sent: list[Any] = PageReply(Reply(turn_id="t0-1", model="m", created=1, locale="de")).render(
        finished(1, "passed", response=ADR)
    )
    assert "".join(payload["choices"][0]["delta"].get("content", "") for payload in sent) == ADR
    events = [event(1, "attempt.started", attempt=1, delivery=1), event(2, "attempt.output", attempt=1, text=ADR)]
    live = LivePage(Reply(turn_id="t0-1", model="m", created=1, locale="de"))
    reader = Reader().read([payload for item in events for payload in live.render(item)])
    assert reader.text.rstrip() == ADR.rstrip(), "also in a draft that streams"


async def test_a_history_and_a_continue_hold_the_answer_that_was_accepted(turns: FakeTurns) -> None:
    page = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": ""}
    said = [{"role": "user", "content": SHOWN}, {"role": "assistant", "content": SHOWN}]
    body = {"model": "scripted", "messages": [*said, {"role": "user", "content": "Weiter"}]}
    async with caller(app_with(turns)) as http:
        await http.post("/v1/chat/completions", json=body, headers=page)
        await http.post("/v1/chat/completions", json={**body, "messages": said}, headers=page)
        await http.post("/v1/chat/completions", json=body)
    history, go_on, program = ([message["content"] for message in request.messages] for request in turns.submitted)
    assert history[:2] == [SHOWN, ADR], "only what the agent said was shown so"
    assert go_on[1] == ADR
    assert program[1] == SHOWN


def test_a_header_that_would_end_the_fence_is_left_as_it_is() -> None:
    text = "---\na: |\n  x\n````\n---\nText"
    assert fenced(text) == text
