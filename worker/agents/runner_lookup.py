"""Finds the runners named in ``HELIX_MODELS`` (``runner`` or ``runner:option``)."""

from __future__ import annotations

import functools
from collections.abc import Callable

from api_client.contract.errors import SettingsError
from api_client.contract.plugins import RUNNER, UnusablePlugin, find_plugins, make_plugin
from worker.runners.base import Runner
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.http.runner import OpenAiHttpRunner
from worker.runners.scripted.runner import ScriptedRunner

_BUILT_IN: dict[str, Callable[[], Runner]] = {
    "scripted": ScriptedRunner,
    "claude_cli": ClaudeCliRunner,
    "openai_http": OpenAiHttpRunner,
}


def build_runner(spec: str) -> tuple[Runner, str]:
    """Return the runner that a specification such as ``scripted:path.yaml`` names, and the option after the colon.

    Raises ``SettingsError``.
    """
    name, _, option = spec.partition(":")
    return _load_runner(name), option


def list_runner_names() -> tuple[str, ...]:
    return tuple(sorted({*_BUILT_IN, *find_plugins(RUNNER)}))


@functools.cache
def _load_runner(name: str) -> Runner:
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    installed = find_plugins(RUNNER)
    given = {"module": name} if "." in name and name not in installed else {}
    try:
        runner: Runner = make_plugin(RUNNER, "python" if given else name, **given)
    except UnusablePlugin as error:
        known = "" if name in installed else f"; there are: {', '.join(list_runner_names())}"
        raise SettingsError([f"HELIX_MODELS: {error}{known}"]) from error
    return runner
