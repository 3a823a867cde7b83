"""Plug-ins that installed packages add through entry points, including the packages of this project."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from api_client.contract.catalogue import collect_declarations

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Name of this project's distribution. Its entry points win over those of other packages.
_OURS = "helix-turns"
RUNNER = "helix_turns.runners"
#: Mapping of command names to the command's location and its line in the list of commands.
COMMAND = "helix_turns.commands"
#: ``(settings, connection) -> Watcher | None``: background work of each worker process beside its turns.
WATCHER = "helix_turns.watchers"
#: ``(settings) -> Iterator[Finding]``: a check that ``turns doctor`` carries out.
CHECK = "helix_turns.checks"
#: ``(output, since, model, redact) -> None``: writes an export of many turns for ``turns turn export``.
EXPORT = "helix_turns.exports"
#: Validators: classes or functions that make one (docs/validators.md).
VALIDATOR = "helix_turns.validators"
#: Rules for policy files: classes derived from ``worker.enforcement.rules.Rule``.
RULE = "helix_turns.rules"
#: Stores of session files, by the scheme of HELIX_FILES; see ``contract.session_files``.
SESSION_FILES = "helix_turns.session_files"
#: Kinds of work: classes derived from ``contract.work.WorkKind``.
WORK_KIND = "helix_turns.work_kinds"
#: Worker side of each kind of work, by the same names: classes derived from ``worker.turns.work.TurnWork``.
WORK = "helix_turns.work"
#: ``(store) -> contract.admission.Admission``: a check that a turn passes before it is stored.
ADMISSION = "helix_turns.admissions"
#: Observers of ended turns: classes derived from ``worker.observers.Observer``.
OBSERVER = "helix_turns.observers"
#: Equipment of agents' runs: classes derived from ``worker.turns.run_equipment.RunEquipment``.
EQUIPMENT = "helix_turns.equipment"
#: Kinds of interruptions: classes derived from ``interruptions.question.QuestionKind``.
INTERRUPTION = "helix_turns.interruptions"

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
    VALIDATOR: "validator",
    RULE: "rule",
    SESSION_FILES: "store of session files",
    EQUIPMENT: "equipment of runs",
    INTERRUPTION: "kind of interruption",
}
#: Group -> this project's own plug-ins, each with its package, so that messages can name a missing package.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    f"helix_turns.{group}": {name: f"worker.plugins.{package}" for name, package in names.items()}
    for group, names in collect_declarations("PLUGINS").items()
}


class UnusablePlugin(LookupError):
    """Raised when a plug-in is not installed or cannot be imported."""


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the installed entry points of a group by name, without importing them."""
    return _scan(group, tuple(sys.path))


@lru_cache(maxsize=32)
def _scan(group: str, _path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and most commands need none

    found = sorted(
        entry_points(group=group),
        key=lambda entry: (bool(entry.dist and entry.dist.name == _OURS), entry.name, entry.value),
    )
    return {entry.name: entry for entry in found}


def is_known(group: str, name: str) -> bool:
    """Return True if a plug-in with this name is installed or belongs to this project."""
    return name in PACKAGES.get(group, {}) or name in find_plugins(group)


def why_missing(group: str, name: str) -> str:
    """Return why a plug-in of this project cannot be used, or an empty string if it can."""
    from importlib.util import find_spec

    package = PACKAGES.get(group, {}).get(name)
    try:
        found = not package or (name in find_plugins(group) and find_spec(package))
    except ModuleNotFoundError:
        found = False
    called = name.replace(".", " ")  # a command in a group
    return "" if found else f"the {GROUPS[group]} {called!r} is in the plug-in {package}, which is not installed"


def load_plugin(group: str, name: str) -> Any:
    """Import the plug-in ``name`` of an entry point group and return its object. Raises ``UnusablePlugin``."""
    if missing := why_missing(group, name):
        raise UnusablePlugin(missing)
    entry = find_plugins(group).get(name)
    if entry is None:
        raise UnusablePlugin(f"no {GROUPS[group]} {name!r}")
    return _run_foreign_code(entry.load, f"the {GROUPS[group]} {name!r} ({entry.value})")


def make_plugin(group: str, name: str, *given: Any, **named: Any) -> Any:
    """Import the plug-in ``name``, call it with these arguments, and return the result. Raises ``UnusablePlugin``."""
    make = load_plugin(group, name)
    called = f"the {GROUPS[group]} {name!r} ({find_plugins(group)[name].value})"
    return _run_foreign_code(lambda: make(*given, **named), called)


def import_object(place: str, called: str) -> Any:
    """Import the object at ``package.module:name``. Raises ``UnusablePlugin``, which calls the object ``called``."""
    return _run_foreign_code(lambda: pkgutil.resolve_name(place), f"{called} ({place})")


def _run_foreign_code(step: Callable[[], Any], called: str) -> Any:
    """Return the result of ``step``. Raises ``UnusablePlugin`` if the step raises or tries to end the program."""
    try:
        return step()
    except (Exception, SystemExit) as error:
        raise UnusablePlugin(f"{called} does not load: {error!r}") from error
