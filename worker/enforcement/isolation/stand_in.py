"""Stands for validators, and has a child process do their work where it is long or has no known bound."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from worker.enforcement.isolation.child import Child
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.validators import ResponseValidator, StepMarkerValidator

#: Time that a validator has for one answer, in seconds, and memory that it may take, in MiB.
SECONDS, MEMORY_MB = 10.0, 1024
#: Characters of all texts up to which validators whose work is bounded run in the process itself.
MOST_CHARACTERS = 64 * 1024


def in_place(validator: ResponseValidator, texts: Collection[str]) -> bool:
    """Whether a validator judges these texts in this process: its work is bounded, or what it starts has bounds."""
    if _stays(validator):
        return True
    return sum(map(len, texts)) <= MOST_CHARACTERS and validator.bounded_on(texts)


def _stays(validator: ResponseValidator) -> bool:
    """What it starts has bounds, or the repair has to know it: the step marker's search is one pass."""
    return isinstance(validator, StepMarkerValidator) or bool(getattr(validator, "reaches_out", False))


@contextmanager
def isolated(
    validators: Sequence[ResponseValidator], *, seconds: float | None = None, memory_mb: int | None = None
) -> Iterator[tuple[ResponseValidator, ...]]:
    """The validators. One child process judges what is long, or has no known bound. It ends with this block.

    A validator keeps no state between calls: what it changes in itself stays in the child.

    Args:
        validators: the validators.
        seconds: time for each of them and answer, ``SECONDS`` by default; 0 has all of them work in this process.
        memory_mb: memory that each of them may take, in MiB, ``MEMORY_MB`` by default.
    """
    seconds = SECONDS if seconds is None else seconds
    apart = [each for each in validators if seconds and not _stays(each)]
    child = Child(apart, seconds, MEMORY_MB if memory_mb is None else memory_mb)
    stand_ins = {id(validator): _StandIn(validator, child, place) for place, validator in enumerate(apart)}
    try:
        yield tuple(stand_ins.get(id(validator), validator) for validator in validators)
    finally:
        child.close()


class _StandIn(ResponseValidator):
    """Hands its calls to a child."""

    def __init__(self, validator: ResponseValidator, child: Child, place: int) -> None:
        self._validator, self._child, self._place = validator, child, place

    @property
    def name(self) -> str:
        """The validator's name."""
        return self._validator.name

    @property
    def mends_files(self) -> bool:  # type: ignore[override]
        """As the validator's own."""
        return self._validator.mends_files

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """As the validator's. Raises NotJudged where it does not end well."""
        found: list[ValidationIssue] = self._call("validate", response, context)
        return found

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """As the validator's. Raises NotJudged where it does not end well."""
        text: str | None = self._call("apply_fallback", response, context)
        return text

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """As the validator's. Raises NotJudged where it does not end well."""
        lines: Sequence[str] = self._child.call(self._place, "explain_fallback", (before, after, dict(context)))
        return lines

    def _call(self, method: str, response: str, context: Mapping[str, Any]) -> Any:
        if in_place(self._validator, [response, *(context.get("files") or {}).values()]):
            return getattr(self._validator, method)(response, context)
        return self._child.call(self._place, method, (response, dict(context)))
