"""Validators by name: ADR-038's three, and users' own from entry points of the group ``helix_turns.validators``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from worker.enforcement.codes import DEFAULT_LOCALE
from worker.enforcement.validators import (
    ADRStructureValidator,
    FileExistenceValidator,
    ResponseValidator,
    StepMarkerValidator,
)

GROUP = "helix_turns.validators"

Factory = Callable[[Path, str], ResponseValidator]

_BUILT_IN: Mapping[str, Factory] = {
    "step_marker": lambda root, locale: StepMarkerValidator(locale),
    "adr_structure": lambda root, locale: ADRStructureValidator(locale),
    "file_existence": lambda root, locale: FileExistenceValidator(root, locale),
}


class UnknownValidatorError(ValueError):
    """A name that no validator has; the message lists the names there are and the likely one."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown validator {name[:80]!r}{hint} (known: {', '.join(known) or 'none'})")
        self.name, self.known = name, tuple(known)


class DuplicateValidatorError(ValueError):
    """The same validator name twice, so that results could not be told apart."""


@cache
def _installed() -> Mapping[str, EntryPoint]:
    """Users' own validators; a name of ours is never replaced by another package's."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in _BUILT_IN}


def known_validators() -> tuple[str, ...]:
    """The names that can be asked for: ours first, then users' own."""
    return (*_BUILT_IN, *sorted(_installed()))


def build_validators(
    names: Sequence[str], *, root: Path, locale: str = DEFAULT_LOCALE
) -> tuple[ResponseValidator, ...]:
    """The validators of these names, in this order.

    Args:
        names: names of ``known_validators()``.
        root: what paths in answers are relative to (HELIX_ROOT).
        locale: language of messages, ``de`` or ``en``.

    Raises:
        UnknownValidatorError: no validator has one of the names.
        DuplicateValidatorError: a name is there twice.
        TypeError: an entry point names something that makes no validator.
    """
    known = known_validators()
    for name in names:
        if name not in known:
            raise UnknownValidatorError(name, known)
    return unique(tuple(_build(name, root, locale) for name in names))


def _build(name: str, root: Path, locale: str) -> ResponseValidator:
    if name in _BUILT_IN:
        return _BUILT_IN[name](root, locale)
    made = _installed()[name].load()
    if callable(made):
        wanted = inspect.signature(made).parameters
        offered = {"root": root, "helix_root": root, "locale": locale}
        made = made(**{key: value for key, value in offered.items() if key in wanted})
    if not isinstance(made, ResponseValidator) or made.name != name:
        raise TypeError(f"entry point {name!r} of {GROUP} makes no ResponseValidator named {name!r}")
    return made


def unique(validators: Sequence[ResponseValidator]) -> tuple[ResponseValidator, ...]:
    """The validators, if no two have the same name.

    Raises:
        DuplicateValidatorError: two have the same name.
    """
    names = [validator.name for validator in validators]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateValidatorError(f"validator {name!r} is there twice")
    return tuple(validators)


def select(validators: Sequence[ResponseValidator], names: Sequence[str] | None) -> tuple[ResponseValidator, ...]:
    """Those of the validators that are named; all of them for None.

    Raises:
        UnknownValidatorError: none of the validators has one of the names.
    """
    if names is None:
        return tuple(validators)
    by_name = {validator.name: validator for validator in validators}
    for name in names:
        if name not in by_name:
            raise UnknownValidatorError(name, tuple(by_name))
    return tuple(by_name[name] for name in dict.fromkeys(names))
