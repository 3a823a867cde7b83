"""A reader whose connection breaks again and again, wherever it breaks, ends with the same text as one that stayed.

The reader keeps the text by the function docs/events.md gives to programs, over the frames the relay really sends.
"""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st

from api_client.contract.events import reset_event
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with
from tests.unit.web.openwebui import Reader
from tests.unit.web.test_page import (
    WRONG_FILE,
    completed,
    end,
    ends,
    histories,
    lost,
    numbered,
    output,
    rejected,
    started,
)
from tests.unit.web.test_turns import CHAT_PAGE

DOCS = Path(__file__).parents[3] / "docs" / "events.md"
Reduce = Callable[[str, dict[str, Any]], str]


def documented() -> Reduce:
    """The function as it stands in the document."""
    [code] = [code for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "def " in code]
    names: dict[str, Any] = {}
    exec(code, names)
    reduce: Reduce = names["text_after"]
    return reduce


text_after = documented()


TURNS = FakeTurns()
APP, LOOP = app_with(TURNS), asyncio.Runner()


class Follower:
    """A reader of a turn's events that keeps the text, and the id to come back with."""

    def __init__(self) -> None:
        self.text, self.last_id, self.ended = "", "", False

    async def connect(self, http: httpx2.AsyncClient, upto: float = 1.0) -> None:
        """Take what comes until the connection breaks after this share of the bytes, maybe within a frame."""
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        received = (await http.get(f"/v1/turns/{TURN_ID}/events", headers=headers)).text
        *frames, _broken = received[: round(len(received) * upto)].split("\n\n")
        for frame in frames:
            if found := re.fullmatch(r"id: (.+)\nevent: .+\ndata: (.+)", frame):
                self.last_id, event = found[1], json.loads(found[2])
                self.text = text_after(self.text, event)
                self.ended = event["kind"] == "turn.finished"


async def read(events: list[Any], breaks: list[float]) -> Follower:
    follower, TURNS.script = Follower(), events
    async with caller(APP) as http:
        for upto in breaks:
            await follower.connect(http, upto)
        if not follower.ended:
            await follower.connect(http)
    return follower


@settings(max_examples=80, deadline=None)
@given(history=histories, last=ends, breaks=st.lists(st.floats(0, 1), max_size=5))
def test_however_often_the_connection_breaks_the_text_is_the_accepted_one(
    history: list[tuple[str, dict[str, Any]]], last: tuple[str, dict[str, Any]], breaks: list[float]
) -> None:
    follower = LOOP.run(read(list(numbered(*history, last)), breaks))
    assert follower.ended
    assert follower.text == last[1]["response"]


@settings(max_examples=50, deadline=None)
@given(history=histories, breaks=st.lists(st.floats(0, 1), max_size=5))
def test_a_draft_read_in_pieces_is_the_draft_read_at_once(
    history: list[tuple[str, dict[str, Any]]], breaks: list[float]
) -> None:
    events = list(numbered(*history))
    torn, whole = LOOP.run(read(events, breaks)), LOOP.run(read(events, []))
    assert (torn.text, torn.last_id) == (whole.text, whole.last_id)


def test_a_lost_attempts_draft_is_taken_back_and_so_is_a_rejected_one() -> None:
    shown, text = [], ""
    kinds = [started(), output("Halb"), lost("running"), started(), output("Falsch."), completed()]
    for event in numbered(*kinds, rejected(WRONG_FILE), started(2), output("Richtig."), completed(), end("Richtig.")):
        text = text_after(text, event.to_dict())
        shown.append(text)
    assert shown == ["", "Halb", "", "", "Falsch.", "Falsch.", "", "", "Richtig.", "Richtig.", "Richtig."]


async def test_a_page_whose_log_begins_anew_shows_nothing_twice() -> None:
    begun = numbered(started(), output("Hal"))
    turns = FakeTurns([*begun, reset_event("lost"), *numbered(started(), output("Hallo."), completed(), end("Hallo."))])
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], "stream": True}
    async with caller(app_with(turns)) as http:
        answer = await http.post("/v1/chat/completions", json=body, headers=CHAT_PAGE)
    frames = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    page = Reader().read(json.loads(frame) for frame in frames if frame != "[DONE]")
    assert page.seen == ["", "Hal", "", "Hallo."]
