"""The wire form of events, and the table in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.events import KINDS, Event, read_event_id

DOCS = Path(__file__).parents[2] / "docs" / "events.md"


def test_the_documented_table_is_the_table_in_the_code() -> None:
    documented = dict(re.findall(r"^\| `([a-z.]+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE))
    assert documented == KINDS


@given(st.integers(1, 10**9), st.text(), st.sampled_from(sorted(KINDS)))
def test_an_event_survives_the_wire(seq: int, text: str, kind: str) -> None:
    import json

    event = Event(seq=seq, epoch="a1", at=12.345, kind=kind, data={"text": text})
    assert Event.decode(json.dumps(event.to_dict())) == event
    assert read_event_id(event.event_id) == (seq, "a1", 12_345)
    assert read_event_id(f"{seq}-a1") == (seq, "a1", 0), "an id of an earlier version"


@pytest.mark.parametrize("garbage", ["", "{}", "[]", "null", '{"seq": 1}', '{"seq": [], "epoch": 1}', "\x00"])
def test_garbage_is_no_event(garbage: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Event.decode(garbage)


@pytest.mark.parametrize(
    "garbage",
    ["", "-1", "-1-a", "abc", "1-", "٣-a", "1" * 30 + "-a", "1-a-b", "1-\n", "1-a-", "1-a-2-3", "1-a-٣"],
)
def test_garbage_is_no_event_id(garbage: str) -> None:
    with pytest.raises(ValueError, match="not an event id"):
        read_event_id(garbage)
