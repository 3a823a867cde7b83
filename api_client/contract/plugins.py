"""Plug-ins: what installed packages add under entry points, and which of ours adds what."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

#: The distribution whose entry points no other one replaces.
_OURS = "helix-turns"
RUNNERS = "helix_turns.runners"

#: Group -> what its entry points are.
GROUPS: Mapping[str, str] = {RUNNERS: "runner"}
#: What our own plug-ins add to a group, each name with its package: one that is missing can then be named.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    RUNNERS: {name: f"worker.plugins.{name}" for name in ("acp", "codex", "command", "python")},
}


class UnusablePlugin(LookupError):
    """A plug-in that is not installed or cannot be imported. The message says which one, and why."""


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, without importing one. Of two with one name ours counts."""
    return _find(group, tuple(sys.path))


@lru_cache(maxsize=32)
def _find(group: str, _path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    found = sorted(entry_points(group=group), key=lambda entry: (_is_ours(entry), entry.name, entry.value))
    return {entry.name: entry for entry in found}


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == _OURS


def load_plugin(group: str, name: str) -> Any:
    """Import what an entry point names.

    Raises:
        UnusablePlugin: it is not installed, or importing it fails.
    """
    entry, package = find_plugins(group).get(name), PACKAGES.get(group, {}).get(name)
    missing = f"the {GROUPS[group]} {name!r} is in the plug-in {package}, which is not installed"
    if entry is None:
        raise UnusablePlugin(missing if package else f"no {GROUPS[group]} {name!r}")
    try:
        return entry.load()
    except Exception as error:
        if package and isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(f"{error.name}."):
            raise UnusablePlugin(missing) from error
        raise UnusablePlugin(f"the {GROUPS[group]} {name!r} ({entry.value}) does not load: {error!r}") from error
