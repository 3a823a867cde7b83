"""Validators by name: ADR-038's three, and users' validators from entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from api_client.contract.plugins import VALIDATOR
from api_client.contract.validator_names import (
    describe_unknown_validator,
    installed_validators,
    offered_validators,
)
from worker.enforcement.validators import (
    ADRStructureValidator,
    FileExistenceValidator,
    ResponseValidator,
    StepMarkerValidator,
)
from worker.enforcement.validators.codes import DEFAULT_LOCALE
from worker.enforcement.validators.foreign_code import report_unusable_code

Factory = Callable[[Path, str], ResponseValidator]

_BUILT_IN: Mapping[str, Factory] = {
    "step_marker": lambda root, locale: StepMarkerValidator(locale),
    "adr_structure": lambda root, locale: ADRStructureValidator(locale),
    "file_existence": lambda root, locale: FileExistenceValidator(root, locale),
}


class UnknownValidatorError(ValueError):
    """Raised if no validator has a given name. The message lists the known names and suggests a similar one."""

    def __init__(self, name: str, offered: Sequence[str]) -> None:
        super().__init__(describe_unknown_validator(name, offered))


class DuplicateValidatorError(ValueError):
    """Raised if two validators have the same name."""


def build_validators(
    names: Sequence[str], *, root: Path, locale: str = DEFAULT_LOCALE
) -> tuple[ResponseValidator, ...]:
    """Build the validators with these names, in this order. Paths in answers are relative to ``root`` (HELIX_ROOT).

    Raises:
        UnknownValidatorError: a name is unknown.
        DuplicateValidatorError: a name is there twice.
        ValueError: the code of an entry point raises.
        TypeError: an entry point does not make a validator.
    """
    offered = offered_validators()
    for name in names:
        if name not in offered:
            raise UnknownValidatorError(name, offered)
    return check_unique_names(tuple(_build_validator(name, root, locale) for name in names))


def _build_validator(name: str, root: Path, locale: str) -> ResponseValidator:
    if name in _BUILT_IN:
        return _BUILT_IN[name](root, locale)
    with report_unusable_code(f"entry point {name!r} of {VALIDATOR}"):
        made = installed_validators()[name].load()
        if callable(made):
            wanted = inspect.signature(made).parameters
            given = {"root": root, "helix_root": root, "locale": locale}
            made = made(**{key: value for key, value in given.items() if key in wanted})
    if not isinstance(made, ResponseValidator) or made.name != name:
        raise TypeError(f"entry point {name!r} of {VALIDATOR} makes no ResponseValidator named {name!r}")
    return made


def check_unique_names(validators: Sequence[ResponseValidator]) -> tuple[ResponseValidator, ...]:
    """Return the validators unchanged. Raises ``DuplicateValidatorError`` if two have the same name."""
    names = [validator.name for validator in validators]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateValidatorError(f"validator {name!r} is there twice")
    return tuple(validators)


def select_validators(
    validators: Sequence[ResponseValidator], names: Sequence[str] | None
) -> tuple[ResponseValidator, ...]:
    """Return the validators with these names, or all validators for None. Raises ``UnknownValidatorError``."""
    if names is None:
        return tuple(validators)
    by_name = {validator.name: validator for validator in validators}
    for name in names:
        if name not in by_name:
            raise UnknownValidatorError(name, tuple(by_name))
    return tuple(by_name[name] for name in dict.fromkeys(names))
