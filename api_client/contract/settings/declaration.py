"""The declaration of a setting: default, parser, meaning; and the two kinds that no environment variable sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field, fields
from typing import Any


def setting(
    default: Any,
    parse: Callable[[str], Any],
    help_text: str,
    *,
    secret: bool = False,
    masked: bool = False,
    per_model: bool = False,
    instead: str = "",
) -> Any:
    """A setting; ``parse`` reads its text. ``per_model``: a model's block of the settings file may set it too.

    ``masked``: it may hold a secret, so it is shown as one. ``instead``: the better place of a deprecated one.
    """
    shown = {"secret": secret, "masked": secret or masked, "instead": instead}
    return _field(default, kind="setting", parse=parse, help=help_text, per_model=per_model, **shown)


def constant(default: Any, parse: Callable[[str], Any], help_text: str, *, was: bool = False) -> Any:
    """A value that belongs to the program. Tests turn it, through ``HELIX_CONSTANTS``; see ``load``.

    ``was``: it was a setting once. Who still sets it is warned, and the constant holds.
    """
    apart = {"secret": False, "masked": False, "per_model": False}
    return _field(default, kind="constant", parse=parse, help=help_text, was=was, **apart)


def deprecated(default: Any, parse: Callable[[str], Any], instead: str) -> Any:
    """A setting that has a better place. It still holds; who sets it is warned, and learns the place."""
    return setting(default, parse, f"Deprecated: use {instead}.", instead=instead)


def of_the_file(default: Any) -> Any:
    """A value that only the settings file can give."""
    return _field(default, kind="file", parse=None, help="", secret=False, masked=False, per_model=False)


def _field(default: Any, **metadata: Any) -> Any:
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(table: Any, kind: str) -> list[Field[Any]]:
    """The fields of a kind, in order: ``setting``, ``constant`` or ``file``."""
    return [each for each in fields(table) if each.metadata["kind"] == kind]


def retired(table: Any) -> dict[str, str]:
    """The fields that were settings once, or have a better place; each with what a warning says behind its name."""
    said = "is a setting no longer: {} holds; take it out (docs/settings.md, Constants)"
    were = [each for each in declared(table, "constant") if each.metadata["was"]]
    moved = [each for each in declared(table, "setting") if each.metadata["instead"]]
    return {each.name: said.format(spelled(each.default)) for each in were} | {
        each.name: f"still holds, but is deprecated: use {each.metadata['instead']}" for each in moved
    }


def name_of(attribute: str) -> str:
    """The environment name of a setting."""
    return f"HELIX_{attribute.upper()}"


def spelled(value: Any) -> str:
    """A value as one writes it in the environment."""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return ",".join(value) if isinstance(value, tuple) else str(value)
