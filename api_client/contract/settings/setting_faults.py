"""Finds settings that have a valid form but cannot work, by the modules of ``api_client.setting_checks``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from api_client.contract.errors import SettingsError
from api_client.contract.package_parts import collect_parts
from api_client.contract.settings import Settings


@dataclass(frozen=True, slots=True)
class SettingFault:
    """A setting with a valid form that cannot work, for example because a name does not exist."""

    check: str
    message: str
    fix: str


def find_setting_faults(settings: Settings) -> Iterator[SettingFault]:
    for find_faults in collect_parts("api_client.setting_checks", "find_faults"):
        yield from find_faults(settings)


def require_fitting(settings: Settings) -> None:
    """Raise ``SettingsError`` if any setting cannot work although its form is valid (``SettingFault``)."""
    if found := [fault.message for fault in find_setting_faults(settings)]:
        raise SettingsError(found)
