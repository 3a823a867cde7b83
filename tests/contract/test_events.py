"""The wire form of events, and the table in the documentation."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.event_kinds import TurnQueued, TurnRetrying, UnknownEvent
from api_client.contract.events import Event, body_of, data_of, read_event_id
from api_client.contract.turn import Outcome
from api_client.turns.record.encoding import encode_transition
from api_client.turns.record.transition import Answer, Transition
from tests.event_table import KINDS

DOCS = Path(__file__).parents[2] / "docs" / "events.md"


def test_the_documented_table_is_the_table_in_the_code() -> None:
    documented = dict(re.findall(r"^\| `([a-z.]+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE))
    assert documented == KINDS


@given(st.integers(1, 10**9), st.text(), st.sampled_from(sorted(KINDS)))
def test_an_event_survives_the_wire(seq: int, text: str, kind: str) -> None:

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


GOLDEN = Path(__file__).parents[1] / "golden" / "events-v1.jsonl"
RECORDED = GOLDEN.read_text().splitlines()
#: What version 1 of the program left out of some ``turn.retrying``; always written since.
LEFT_OUT = {"codes": [], "feedback": "", "goes_on": False}


@pytest.mark.parametrize("wire", RECORDED, ids=[f"{n}-{json.loads(wire)['kind']}" for n, wire in enumerate(RECORDED)])
def test_an_event_of_the_first_version_is_read_typed_and_written_as_it_was(wire: str) -> None:
    event = Event.decode(wire)
    assert event.to_dict() == json.loads(wire)
    assert not isinstance(event.body, UnknownEvent)
    written = json.loads(json.dumps(data_of(event.body)))
    missing = {name: value for name, value in written.items() if name not in event.data}
    assert missing.items() <= LEFT_OUT.items()
    assert [name for name in written if name not in missing] == list(event.data)
    kept = {name: value for name, value in written.items() if name not in missing}
    assert without_empty(kept) == without_empty(event.data)


def without_empty(value: Any) -> Any:
    """The value without what issues and errors may leave out: a reader gives their missing keys the empty value."""
    if isinstance(value, list):
        return [without_empty(each) for each in value]
    if isinstance(value, dict):
        return {name: without_empty(each) for name, each in value.items() if each not in ("", 0, [], {})}
    return value


def test_the_recorded_events_have_every_kind() -> None:
    assert {json.loads(wire)["kind"] for wire in RECORDED} == set(KINDS)


ENDS = Transition(attempt=1, outcome=Outcome.PASSED, answer=Answer(response="Ja.", step="done"))


def test_what_the_store_writes_itself_has_the_fields_of_its_kind() -> None:
    root = Path(__file__).parents[2]
    found = {}
    for path in [*root.glob("api_client/**/*.lua"), *root.glob("worker/**/*.lua")]:
        for kind, data in re.findall(r"emit\('([a-z.]+)',((?:.|\n)*?)\}'\)", path.read_text()):
            found[kind] = re.findall(r'"(\w+)":', data)
    # The answer in the event of the end comes from the worker as text.
    found["turn.finished"] += json.loads("{" + str(encode_transition(ENDS, {}).build_arguments()["ending"]) + "}")
    empty = {kind: list(data_of(body_of(kind, {}))) for kind in found}
    by_the_store = {
        "turn.queued",
        "turn.retrying",
        "turn.paused",
        "turn.resumed",
        "attempt.started",
        "attempt.lost",
        "turn.decided",
        "turn.stopping",
        "turn.finished",
    }
    assert set(found) == by_the_store
    for kind, names in found.items():
        assert [name for name in names if name in empty[kind]] == empty[kind], kind
        assert set(names) <= set(KINDS[kind].partition("data: ")[2].split(", ")), kind


def test_a_version_that_is_not_known_is_not_misread() -> None:
    body = body_of("turn.stopping", {"version": 2, "reason": ["a", "list"]})
    assert body == UnknownEvent(KIND="turn.stopping", data={"version": 2, "reason": ["a", "list"]})
    assert data_of(body) == {"version": 2, "reason": ["a", "list"]}


@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.text(), st.none() | st.booleans() | st.floats() | st.text()))
def test_whatever_the_data_is_an_event_is_read(kind: str, data: dict[str, object]) -> None:
    named = dict(zip(KINDS[kind].partition("data: ")[2].split(", "), data.values(), strict=False))
    read = body_of(kind, named)
    assert body_of(kind, data_of(read)) == read


@pytest.mark.parametrize(
    "odd", [True, 3, "x", ["kind"], {"kind": 3}, {"asked": {}}, {"kind": "x", "wait_seconds": "long"}]
)
def test_an_interruption_that_cannot_be_right_reads_as_none(odd: object) -> None:
    assert body_of("turn.suspended", {"interruption": odd}) == body_of("turn.suspended", {})


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, "3", None, [], {}])
def test_a_number_that_is_none_reads_as_zero(odd: object) -> None:
    queued, retrying = body_of("turn.queued", {"position": odd}), body_of("turn.retrying", {"delay_seconds": odd})
    assert queued == TurnQueued(position=0)
    assert isinstance(retrying, TurnRetrying)
    assert retrying.delay_seconds == 0
