"""Plug-ins: what installed packages add under entry points, and which of ours adds what."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The distribution whose entry points no other one replaces.
_OURS = "helix-turns"
RUNNER = "helix_turns.runners"
COMMAND = "helix_turns.commands"

#: Group -> what its entry points are.
GROUPS: Mapping[str, str] = {RUNNER: "runner", COMMAND: "command"}
#: What our own plug-ins add to a group, each name with its package: one that is missing can then be named.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    RUNNER: {name: f"worker.plugins.{name}" for name in ("acp", "codex", "command", "python")},
    COMMAND: {
        "backup": "worker.plugins.backup",
        "certify-runner": "worker.plugins.certification",
        "mcp": "worker.plugins.mcp",
        "restore": "worker.plugins.backup",
    },
}


class UnusablePlugin(LookupError):
    """A plug-in that is not installed or cannot be imported. The message says which one, and why."""


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, without importing one. Of two with one name ours counts."""
    return _find(group, tuple(sys.path))


@lru_cache(maxsize=32)
def _find(group: str, _path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and most commands need none

    found = sorted(entry_points(group=group), key=lambda entry: (_is_ours(entry), entry.name, entry.value))
    return {entry.name: entry for entry in found}


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == _OURS


def is_known(group: str, name: str) -> bool:
    """Return whether a plug-in of ours or an installed one has this name."""
    return name in PACKAGES.get(group, {}) or name in find_plugins(group)


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
