"""Frames that no reader can split in the wrong place, and markers that do not show."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from api_client.web.wire import data_frame, encode, event_frame

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
    assert len(encode(TRICKY).decode().splitlines()) == 1
    assert json.loads(encode(TRICKY)) == TRICKY


def test_half_a_surrogate_becomes_an_escape() -> None:
    assert encode("\ud800") == b'"\\ud800"'


def test_umlauts_travel_as_they_are() -> None:
    assert encode("ä") == '"ä"'.encode()


def test_a_named_event_carries_its_id() -> None:
    assert event_frame("turn.queued", {"a": 1}, "1-abc") == b'id: 1-abc\nevent: turn.queued\ndata: {"a":1}\n\n'
