"""The declaration of a setting: default, parser, meaning; and the two kinds that no environment variable sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any


def setting(
    default: Any,
    parse: Callable[[str], Any],
    help_text: str,
    *,
    secret: bool = False,
    masked: bool = False,
    per_model: bool = False,
    pairs: bool = False,
) -> Any:
    """A setting; ``parse`` reads its text. ``per_model``: a model's block of the settings file may set it too.

    ``masked``: it may hold a secret, so it is shown as one. ``pairs``: the settings file may give a table.
    """
    shown = {"secret": secret, "masked": secret or masked}
    return _field(default, kind="setting", parse=parse, help=help_text, per_model=per_model, pairs=pairs, **shown)


def constant(default: Any, parse: Callable[[str], Any], help_text: str) -> Any:
    """A value that belongs to the program. Tests turn it, through ``HELIX_CONSTANTS``; see ``load``."""
    apart = {"secret": False, "masked": False, "per_model": False}
    return _field(default, kind="constant", parse=parse, help=help_text, **apart)


def of_the_file(default: Any) -> Any:
    """A value that only the settings file can give."""
    return _field(default, kind="file", parse=None, help="", secret=False, masked=False, per_model=False)


def _field(default: Any, **metadata: Any) -> Any:
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class SettingsGroup:
    """Settings of one subject; ``Settings`` has the fields of all groups."""

    def problems(self) -> Iterator[str]:
        """Yield missing parts and contradictions, one line each."""
        yield from ()

    def named_models(self) -> Iterator[tuple[str, str]]:
        """Yield the models that settings name for a purpose, each behind the name of its setting."""
        yield from ()


def declared(table: Any, kind: str) -> list[Field[Any]]:
    """The fields of a kind, in order: ``setting``, ``constant`` or ``file``."""
    return [each for each in fields(table) if each.metadata["kind"] == kind]


def name_of(attribute: str) -> str:
    """The environment name of a setting."""
    return f"HELIX_{attribute.upper()}"


def spelled(value: Any) -> str:
    """A value as one writes it in the environment."""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return ",".join(value) if isinstance(value, tuple) else str(value)
