"""Declares settings, constants and values that only the settings file can contain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any


def declare_setting(
    default: Any,
    parse: Callable[[str], Any],
    help_text: str,
    *,
    secret: bool = False,
    masked: bool = False,
    per_model: bool = False,
    pairs: bool = False,
) -> Any:
    """Declare a setting with a default value, a help text and a parser.

    ``per_model`` allows the setting in a model's block of the settings file, ``masked`` hides its value like a secret,
    and ``pairs`` allows a table in the settings file.
    """
    shown = {"secret": secret, "masked": secret or masked}
    return _make_field(default, kind="setting", parse=parse, help=help_text, per_model=per_model, pairs=pairs, **shown)


def declare_constant(default: Any, help_text: str) -> Any:
    """Declare a constant. Only tests change constants, by the environment variable ``HELIX_CONSTANTS``."""
    apart = {"secret": False, "masked": False, "per_model": False}
    return _make_field(default, kind="constant", parse=type(default), help=help_text, **apart)


def declare_file_value(default: Any) -> Any:
    """Declare a setting that may be set only in the settings file, not in the environment."""
    return _make_field(default, kind="file", parse=None, help="", secret=False, masked=False, per_model=False)


def _make_field(default: Any, **metadata: Any) -> Any:
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class SettingsGroup:
    """Base class for the settings about one subject."""

    def find_problems(self) -> Iterator[str]:
        """Yield a message for each missing or contradictory setting in the group."""
        yield from ()

    def list_named_models(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that refers to a model, together with the model."""
        yield from ()


def declared_fields(table: Any, kind: str) -> list[Field[Any]]:
    """Return the dataclass fields declared as ``setting``, ``constant`` or ``file``, in order."""
    return [each for each in fields(table) if each.metadata["kind"] == kind]


def environment_name(attribute: str) -> str:
    """Return the name of the environment variable for a setting, such as ``HELIX_LEASE_SECONDS``."""
    return f"HELIX_{attribute.upper()}"


def spell_value(value: Any) -> str:
    """Format a setting's value as text for an environment variable."""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return ",".join(value) if isinstance(value, tuple) else str(value)
