"""Convert stored records to ``Turn`` and ``AttemptRecord``, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, replace
from functools import cache
from typing import Any, Generic

from api_client.contract.attempt_record import AttemptRecord, P, T, _parse_seconds
from api_client.contract.decision import TurnDecision
from api_client.contract.frozen import checked_frozen
from api_client.contract.interruption import Interruption
from api_client.contract.issue import issues_to_dicts, read_issues
from api_client.contract.step_marker import read_spans
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnRequest, TurnState
from api_client.contract.turn_error import TurnError

#: Declared type of a field -> reader of its stored text. Times are stored in milliseconds.
_READ: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": lambda text: int(text or 0),
    "bool": bool,
    "float": _parse_seconds,
    "TurnState": TurnState,
    "TurnRequest": TurnRequest.from_json,
    "Outcome | None": lambda text: Outcome(text) if text else None,
    "PendingFailure | None": PendingFailure.from_json,
    "dict[str, Any]": lambda text: json.loads(text or "{}"),
    "TurnError | None": TurnError.from_json,
    "TurnDecision | None": TurnDecision.from_json,
    "Interruption | None": Interruption.from_json,
    "tuple[ValidationIssue, ...]": lambda text: read_issues(json.loads(text or "[]")),
    "tuple[str, ...]": lambda text: tuple(json.loads(text or "[]")),
}
#: Declared type of a field -> writer of its stored text, for the fields that workers change.
_WRITTEN: dict[str, Callable[[Any], str]] = {
    "str": str,
    "int": str,
    "bool": lambda value: "1" if value else "",
    "float": lambda seconds: str(int(seconds * 1000)),
    "PendingFailure | None": lambda failing: failing.to_json() if failing else "{}",
    "Interruption | None": lambda asked: asked.to_json() if asked else "{}",
    "dict[str, Any]": lambda mapping: json.dumps(mapping) if mapping else "{}",
    "tuple[ValidationIssue, ...]": lambda issues: json.dumps(issues_to_dicts(issues)) if issues else "[]",
    "tuple[str, ...]": lambda texts: json.dumps(texts) if texts else "[]",
}
_STORED_AS = {"turn_id": "id"}
_APART = {"markers", "number"}
Reader = tuple[str, Callable[[str], Any]]


def _make_readers(record: type[Turn | AttemptRecord]) -> dict[str, Reader]:
    return {
        _STORED_AS.get(each.name, each.name): (each.name, _READ[str(each.type)])
        for each in fields(record)
        if each.name not in _APART
    }


_ATTEMPT = _make_readers(AttemptRecord)
_TURN = {name.encode(): reader for name, reader in _make_readers(Turn).items()}
_NEEDED = frozenset(each.name for each in fields(Turn) if each.default is MISSING and each.default_factory is MISSING)


def _read_turn_fields(stored: Mapping[bytes, bytes]) -> dict[str, Any]:
    found = {}
    for key, value in stored.items():
        if reader := _TURN.get(key):
            name, read = reader
            found[name] = read(value.decode("utf-8", "replace"))
    return found


def decode_turn(stored: Mapping[bytes, bytes]) -> Turn:
    """Build a turn from the stored fields of its record, including the long texts that were read.

    Raises ``ValueError`` if the data is not a turn's record.
    """
    try:
        values = _read_turn_fields(stored)
        if response := values.get("response"):
            values["markers"] = read_spans(json.loads(stored.get(b"markers") or "null"), response)
        if missing := _NEEDED - values.keys():
            raise ValueError(f"not a turn's record: {min(missing)} is missing")
        return Turn(**values)
    except (AttributeError, TypeError) as error:  # JSON of another shape
        raise ValueError(f"not a turn's record: {error}") from error


def apply_stored_changes(turn: Turn, changed: Mapping[bytes, bytes]) -> Turn:
    """Return a copy of a turn updated with newer stored fields."""
    try:
        return replace(turn, **_read_turn_fields(changed))
    except (AttributeError, TypeError) as error:  # JSON of another shape
        raise ValueError(f"not a turn's record: {error}") from error


_IN = "_in"
#: Reference that stands for the user's message, which the turn's request holds.
ASKED = "request"


def has_separate_texts(stored: Mapping[bytes, bytes]) -> bool:
    """Return True if a turn's record keeps its long texts in a separate hash."""
    return b"apart" in stored


def reference_name(name: str) -> str:
    """Return the name of the field that stores a reference instead of the text of field ``name``."""
    return name + _IN


def decode_attempts(stored: Mapping[bytes, bytes], asked: str = "") -> list[AttemptRecord]:
    """Build a turn's attempts from a Redis hash, oldest first. ``asked`` is the user's message.

    Raises ``ValueError`` if a field has an unknown format.
    """
    return build_attempts(read_facts(stored), asked)


def read_facts(stored: Mapping[bytes, bytes]) -> dict[int, dict[str, str]]:
    """Group stored attempt fields by attempt number. Raises ``ValueError`` for a field without a number."""
    by_number: dict[int, dict[str, str]] = {}
    for key, value in stored.items():
        number, _, name = key.decode().partition(":")
        by_number.setdefault(int(number), {})[name] = value.decode("utf-8", "replace")
    return by_number


def build_attempts(facts: Mapping[int, Mapping[str, str]], asked: str = "") -> list[AttemptRecord]:
    """Build attempts from the stored fields of each attempt number, in order."""
    return [build_attempt(number, facts[number], asked) for number in sorted(facts)]


def build_attempt(number: int, facts: Mapping[str, str], asked: str = "") -> AttemptRecord:
    """Build one attempt from its stored fields. Raises ``ValueError`` if a field is invalid."""
    found: dict[str, Any] = {}
    for stored, text in _resolve_texts(facts, asked).items():
        if reader := _ATTEMPT.get(stored):
            name, read = reader
            found[name] = read(text)
    return AttemptRecord(number=number, **found)


def _resolve_texts(facts: Mapping[str, str], asked: str) -> dict[str, str]:
    texts = {**facts, ASKED: asked}
    found = {
        name.removesuffix(_IN): texts.get(place, "") for name, place in facts.items() if name.endswith(_IN) and place
    }
    return {**facts, **found}


@checked_frozen(slots=True)
class FieldChanges(Generic[T]):
    """New values for some fields of a record, made by the type-checked constructors of ``changes_factory``."""

    record: Callable[..., T]
    values: Mapping[str, Any] = field(default_factory=dict)

    def __or__(self, other: FieldChanges[T]) -> FieldChanges[T]:
        return FieldChanges(self.record, {**self.values, **other.values})

    def to_texts(self) -> dict[str, str]:
        """Convert the new values to texts for the store, by field name."""
        written = _field_writers(self.record)
        return {name: written.get(name, str)(value) for name, value in self.values.items()}

    @classmethod
    def from_texts(cls, record: Callable[..., T], texts: Mapping[str, str]) -> FieldChanges[T]:
        """Parse new values from stored texts. Raises ``ValueError`` if a text does not suit its field's type."""
        types = _field_types(record)
        return cls(record, {name: _READ[types[name]](text) if name in types else text for name, text in texts.items()})


def changes_factory(record: Callable[P, T]) -> Callable[P, FieldChanges[T]]:
    """Return a type-checked function that builds ``FieldChanges`` of ``record`` from keyword arguments."""

    def make_changes(*args: P.args, **values: P.kwargs) -> FieldChanges[T]:
        if args:
            raise TypeError("fields are given by name")
        return FieldChanges(record, values)

    return make_changes


@cache
def _field_types(record: Any) -> dict[str, str]:
    return {each.name: str(each.type) for each in fields(record)}


@cache
def _field_writers(record: Any) -> dict[str, Callable[[Any], str]]:
    return {name: _WRITTEN[kind] for name, kind in _field_types(record).items()}
