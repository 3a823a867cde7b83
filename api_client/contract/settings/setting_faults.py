"""Finds well-formed settings that cannot work, with the modules of ``api_client.setting_checks``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from api_client.contract.errors import SettingsError
from api_client.contract.package_parts import collect_parts
from api_client.contract.settings import Settings, require_store
from api_client.contract.settings.load import read_settings


@dataclass(frozen=True, slots=True)
class SettingFault:
    """A well-formed setting that cannot work, for example because it names a file that does not exist."""

    check: str
    message: str
    fix: str


def find_setting_faults(settings: Settings) -> Iterator[SettingFault]:
    for find_faults in collect_parts("api_client.setting_checks", "find_faults"):
        yield from find_faults(settings)


def reject_faulty_settings(settings: Settings) -> None:
    """Raise ``SettingsError`` if a well-formed setting cannot work (``SettingFault``)."""
    if found := [fault.message for fault in find_setting_faults(settings)]:
        raise SettingsError(found)


def load_process_settings(find_problems: Callable[[Settings], Iterable[str]]) -> Settings:
    """Load the settings of a process that needs a store, and return them if it can start with them.

    Raises ``SettingsError`` with every setting that cannot be read or, if all can, with every problem: contradictions,
    settings that cannot work, and what ``find_problems`` yields.
    """
    settings, problems = read_settings()
    try:
        if not problems:
            require_store(settings)
    except SettingsError as error:
        problems = error.problems
    problems = [*problems, *(fault.message for fault in find_setting_faults(settings)), *find_problems(settings)]
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    return settings
