"""Runners by name, as ``HELIX_MODELS`` gives them (``runner`` or ``runner:option``), and which models work here.

Ours, and users' own from entry points of the group ``helix_turns.runners``. A name with a dot is that of a
module, and the option that of a function in it: a Python agent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points

from api_client.contract.errors import SettingsError
from worker.runners.acp.runner import AcpRunner
from worker.runners.base import Runner
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.codex.runner import CodexRunner
from worker.runners.http.runner import OpenAiHttpRunner
from worker.runners.programs.declared_command import CommandRunner
from worker.runners.python.runner import PythonRunner
from worker.runners.scripted.runner import ScriptedRunner

GROUP = "helix_turns.runners"

_BUILT_IN: dict[str, Callable[[], Runner]] = {
    "scripted": ScriptedRunner,
    "claude_cli": ClaudeCliRunner,
    "openai_http": OpenAiHttpRunner,
    "codex": CodexRunner,
    "acp": AcpRunner,
    "command": CommandRunner,
    "python": PythonRunner,
}


def build_runner(spec: str) -> tuple[Runner, str]:
    """The runner a model names, and its option: ``scripted:path.yaml`` gives the scripted runner and the path.

    Each name has one runner object per process, shared by all threads. No entry point replaces a built-in one.

    Raises:
        SettingsError: there is no runner of this name, or its entry point cannot be loaded.
    """
    name, _, option = spec.partition(":")
    return _shared(name), option


def runner_names() -> tuple[str, ...]:
    """The names of all runners, ours and those of installed packages."""
    return tuple(sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))}))


@functools.cache
def _shared(name: str) -> Runner:
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed and "." in name:
        return PythonRunner(name)
    if name not in installed:
        raise SettingsError([f"HELIX_MODELS: no runner {name!r}; there are: {', '.join(runner_names())}"])
    try:
        made: Runner = installed[name].load()()
    except Exception as error:
        where = f"{name!r} ({installed[name].value})"
        raise SettingsError([f"HELIX_MODELS: the runner {where} does not load: {error!r}"]) from error
    return made
