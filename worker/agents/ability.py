"""The models a worker process can run, and why not the others: it leaves their turns to other workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import structlog

from api_client.contract.counters import label
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from worker.agents import build_runner
from worker.files import template
from worker.runners.claude.cli_program import find_program
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.guard.process_runner import ProcessRunner
from worker.runners.scripted import script

log = structlog.get_logger()

#: How often models are looked at, in seconds.
_LOOK_SECONDS = 15.0


class Ability:
    """The models of a worker's settings, each with why its agents cannot be run here, or nothing. For any thread.

    Without settings it knows of no model, and so of none that cannot be run.

    Attributes:
        labels: those of ``models`` with a line end around each, as claim.lua looks for them; empty: all.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._whys: dict[str, str] = {}
        self.labels = ""

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose agents it can run."""
        return tuple(model for model, why in self._whys.items() if not why)

    @property
    def cannot(self) -> Mapping[str, str]:
        """The others, each with why."""
        return {model: why for model, why in self._whys.items() if why}

    def look(self) -> Mapping[str, str]:
        """Look at every model now; returns ``cannot``. Reads files: blocks for milliseconds."""
        if self._settings is None:
            return {}
        with self._lock:
            found = {model: _obstacle(self._settings, model) for model in self._settings.models}
            for model, why in found.items():
                if why and why != self._whys.get(model):
                    log.error("model.cannot_run", model=model, reason=why)
                elif self._whys.get(model) and not why:
                    log.warning("model.can_run", model=model, was=self._whys[model])
            self._whys, self._looked = found, time.monotonic()
            self.labels = "\n".join(("", *map(label, self.models), "")) if found else ""
        return self.cannot

    def watch(self) -> tuple[str, ...]:
        """Look if it is time to: called with each heartbeat of the worker. Returns ``models``."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.look()
        return self.models


def _obstacle(settings: Settings, model: str) -> str:
    if why := never_works(settings, model):
        return why
    runner, _ = build_runner(settings.models[model])
    if runner.name != ClaudeCliRunner.name:
        return lacking(settings, model)
    try:
        find_program(settings.of_model(model))
    except SettingsError as error:
        return error.problems[0]
    return ""


def lacking(settings: Settings, model: str) -> str:
    """Return which program of an agent is not on this machine; empty where none lacks. Claude's CLI has checks apart.

    Raises:
        SettingsError: there is no such runner.
    """
    runner, option = build_runner(settings.models[model])
    return runner.missing(option, settings.of_model(model)) if isinstance(runner, ProcessRunner) else ""


def broken(settings: Settings, model: str) -> str:
    """Return why an agent that is there cannot be run, by trying; empty where it can. Raises as ``lacking``."""
    runner, option = build_runner(settings.models[model])
    return runner.tried(option, settings.of_model(model)) if isinstance(runner, ProcessRunner) else ""


def certified_program(settings: Settings, model: str) -> tuple[str, str]:
    """The path of an agent's program and its certified version; empty where there is none. Raises as ``lacking``."""
    runner, option = build_runner(settings.models[model])
    return runner.certified(option, settings.of_model(model)) if isinstance(runner, ProcessRunner) else ("", "")


def listed_name(settings: Settings, model: str) -> str:
    """The name under which a model's service lists it, empty where it asks none. Raises as ``lacking``."""
    runner, option = build_runner(settings.models[model])
    return runner.listed_name(option, settings.of_model(model)) if isinstance(runner, ProcessRunner) else ""


def never_works(settings: Settings, model: str) -> str:
    """Return why no turn of this model can ever pass, from the settings and the files here alone; empty when it may."""
    runner, _, option = settings.models[model].partition(":")
    try:
        built, rest = build_runner(settings.models[model])
        if runner == "scripted" and option:
            script.load(settings.root / option)
        for flow in settings.flow_version:
            template.check(settings.template_of(model, flow))
    except SettingsError as error:
        return error.problems[0]
    except script.ScriptError as error:
        return f"its script cannot be played: {error}"
    return built.problem(rest, settings.of_model(model)) if isinstance(built, ProcessRunner) else ""
