"""Which runners there are, and how ``HELIX_MODELS`` names them: ``runner`` or ``runner:option``."""

from __future__ import annotations

import functools
from collections.abc import Callable

from api_client.contract.errors import SettingsError
from worker.runners.base import Runner
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.http.runner import OpenAiHttpRunner
from worker.runners.scripted.inline import InlineRunner
from worker.runners.scripted.runner import ScriptedRunner

RUNNERS: dict[str, Callable[[], Runner]] = {
    "scripted": ScriptedRunner,
    "inline": InlineRunner,
    "claude_cli": ClaudeCliRunner,
    "openai_http": OpenAiHttpRunner,
}


def build_runner(spec: str) -> tuple[Runner, str]:
    """The runner a model names, and its option: ``scripted:path.yaml`` gives the scripted runner and the path.

    Each name has one runner object per process, shared by all threads.

    Raises:
        SettingsError: there is no runner of this name.
    """
    name, _, option = spec.partition(":")
    if name not in RUNNERS:
        raise SettingsError([f"HELIX_MODELS: no runner {name!r}; there are: {', '.join(sorted(RUNNERS))}"])
    return _shared(name), option


@functools.cache
def _shared(name: str) -> Runner:
    return RUNNERS[name]()
