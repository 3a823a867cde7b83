"""A fault of a setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SettingFault:
    """A setting that cannot mean what it says. ``check`` is the name of the finding of ``turns doctor``."""

    check: str
    message: str
    fix: str
