"""Plug-ins that installed packages add by entry points, and the packages of this project that add them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from api_client.contract.catalogue import collect_declarations

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The distribution whose entry points no other one replaces.
_OURS = "helix-turns"
RUNNER = "helix_turns.runners"
#: A mapping from the name to where the command is and its line in the list of commands.
COMMAND = "helix_turns.commands"
#: ``(settings, connection) -> Watcher | None``: what each worker process looks at besides its turns.
WATCHER = "helix_turns.watchers"
#: ``(settings) -> Iterator[Finding]``: what ``turns doctor`` looks at.
CHECK = "helix_turns.checks"
#: ``(output, since, model, redact) -> None``: what ``turns export`` writes of many turns.
EXPORT = "helix_turns.exports"
#: Rules for policy files: classes derived from ``worker.enforcement.rules.Rule``.
RULE = "helix_turns.rules"
#: What stores sessions' files, by the scheme of HELIX_FILES: see ``contract.session_files``.
SESSION_FILES = "helix_turns.session_files"
#: Kinds of work: classes derived from ``contract.work.WorkKind``.
WORK_KIND = "helix_turns.work_kinds"
#: What a worker does for them, by the same names: classes derived from ``worker.turns.work.TurnWork``.
WORK = "helix_turns.work"
#: ``(store) -> contract.admission.Admission``: what a turn passes before it is stored.
ADMISSION = "helix_turns.admissions"
#: Readers of the event log: classes as ``worker.observers.Observer`` describes them.
OBSERVER = "helix_turns.observers"

#: Group -> what its entry points are.
GROUPS: Mapping[str, str] = {
    RUNNER: "runner",
    COMMAND: "command",
    WATCHER: "watcher",
    CHECK: "check",
    EXPORT: "export",
    WORK_KIND: "kind of work",
    WORK: "work of kind",
    OBSERVER: "observer",
    ADMISSION: "admission",
    RULE: "rule",
    SESSION_FILES: "store of session files",
}
#: What our own plug-ins add to a group, each name with its package: one that is missing can then be named.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    f"helix_turns.{group}": {name: f"worker.plugins.{package}" for name, package in names.items()}
    for group, names in collect_declarations("PLUGINS").items()
}


class UnusablePlugin(LookupError):
    """Raised when a plug-in is not installed or cannot be imported; the message says which and why."""


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the installed entry points of a group by name, without importing them."""
    return _find_entry_points(group, tuple(sys.path))


@lru_cache(maxsize=32)
def _find_entry_points(group: str, _path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and most commands need none

    found = sorted(entry_points(group=group), key=lambda entry: (_is_ours(entry), entry.name, entry.value))
    return {entry.name: entry for entry in found}


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == _OURS


def is_known(group: str, name: str) -> bool:
    """Return whether an installed plug-in, or a plug-in package of this project, has this name."""
    return name in PACKAGES.get(group, {}) or name in find_plugins(group)


def why_missing(group: str, name: str) -> str:
    """Return why one of this project's own plug-ins cannot be used; an empty string if there is no problem."""
    from importlib.util import find_spec

    package = PACKAGES.get(group, {}).get(name)
    try:
        found = not package or (name in find_plugins(group) and find_spec(package))
    except ModuleNotFoundError:  # of a package above
        found = False
    return "" if found else f"the {GROUPS[group]} {name!r} is in the plug-in {package}, which is not installed"


def load_plugin(group: str, name: str) -> Any:
    """Import the plug-in ``name`` of an entry point group and return its object.

    Raises:
        UnusablePlugin: the plug-in is not installed, or importing it fails.
    """
    if missing := why_missing(group, name):
        raise UnusablePlugin(missing)
    entry = find_plugins(group).get(name)
    if entry is None:
        raise UnusablePlugin(f"no {GROUPS[group]} {name!r}")
    try:
        return entry.load()
    except Exception as error:
        raise UnusablePlugin(f"the {GROUPS[group]} {name!r} ({entry.value}) does not load: {error!r}") from error
