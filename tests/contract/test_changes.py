"""Changes of a record: declared once, written and read by the types of that declaration."""

from __future__ import annotations

from dataclasses import fields

import pytest

from api_client.contract.attempt import AttemptFacts
from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.record import FieldChanges, changes_of, decode_attempts, decode_turn
from api_client.contract.turn import Failing, Outcome, Progress, TurnRequest

VALUES = {
    "str": "text",
    "int": 7,
    "bool": True,
    "float": 2.5,
    "Failing | None": Failing(outcome=Outcome.INCOMPLETE, code="incomplete", reason="cut", why="broke_off"),
    "dict[str, Any]": {"a": 1},
    "tuple[ValidationIssue, ...]": (ValidationIssue("X", "wrong", "right", file="a.md", line=3),),
    "tuple[str, ...]": ("a", "b"),
}


def every_field(record: type) -> dict[str, object]:
    return {each.name: VALUES[str(each.type)] for each in fields(record)}


def test_every_field_a_holder_may_change_is_read_from_the_record_as_it_was_written() -> None:
    changes = changes_of(Progress)(**every_field(Progress))
    request = TurnRequest(model="m", messages=({"role": "user", "content": "?"},), session_id="s")
    stored = {"id": "t0-1", "epoch": "e", "state": "running", "request": request.to_json(), **changes.to_texts()}
    turn = decode_turn({name.encode(): text.encode() for name, text in stored.items()})
    assert {name: getattr(turn, name) for name in changes.values} == changes.values


def test_every_fact_of_an_attempt_is_read_as_it_was_written() -> None:
    changes = changes_of(AttemptFacts)(**every_field(AttemptFacts))
    [record] = decode_attempts({f"2:{name}".encode(): text.encode() for name, text in changes.to_texts().items()})
    assert {name: getattr(record, name) for name in changes.values} == changes.values
    assert record.number == 2


@pytest.mark.parametrize("record", [Progress, AttemptFacts])
def test_changes_survive_a_seal_with_what_a_newer_version_wrote(record: type) -> None:
    texts = {**FieldChanges(record, every_field(record)).to_texts(), "of_a_newer_version": "kept"}
    assert FieldChanges.from_texts(record, texts).to_texts() == texts


@pytest.mark.parametrize("record", [Progress, AttemptFacts])
def test_a_field_that_is_set_to_nothing_is_read_as_nothing(record: type) -> None:
    nothing = {each.name: getattr(record(), each.name) for each in fields(record)}
    assert FieldChanges.from_texts(record, FieldChanges(record, nothing).to_texts()).values == nothing


def test_later_changes_win() -> None:
    make = changes_of(Progress)
    assert make(best=1, stage=1) | make(best=2) == make(best=2, stage=1)


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="by name"):
        changes_of(Progress)("s-1")  # type: ignore[misc]
