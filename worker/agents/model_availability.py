"""Finds out which models a worker can run, so that it leaves turns of other models to other workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import structlog

from api_client.contract.counters import clean_label
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from worker.agents.runner_lookup import build_runner
from worker.files import template
from worker.runners.claude.cli_program import find_program
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.sandbox.process_runner import ProcessRunner
from worker.runners.scripted import script

log = structlog.get_logger()

_LOOK_SECONDS = 15.0


class ModelAvailability:
    """Tracks which models this worker can run, and why it cannot run the others. Thread-safe.

    Attributes:
        labels: labels of ``models``, each between line ends, for claim.lua; empty for all models.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._whys: dict[str, str] = {}
        self.labels = ""

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(model for model, why in self._whys.items() if not why)

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Return the models that cannot run here, each with the reason."""
        return {model: why for model, why in self._whys.items() if why}

    def check_models(self) -> Mapping[str, str]:
        """Check now which models can run. Return the reason for each model that cannot run here."""
        if self._settings is None:
            return {}
        with self._lock:
            found = {model: find_obstacle(self._settings, model) for model in self._settings.models}
            for model, why in found.items():
                if why and why != self._whys.get(model):
                    log.error("model.cannot_run", model=model, reason=why)
                elif self._whys.get(model) and not why:
                    log.warning("model.can_run", model=model, was=self._whys[model])
            self._whys, self._looked = found, time.monotonic()
            self.labels = "\n".join(("", *map(clean_label, self.models), "")) if found else ""
        return self.unavailable

    def check_if_due(self) -> tuple[str, ...]:
        """Check the models again if the last check was 15 seconds ago, and return those that can run."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.check_models()
        return self.models


def find_obstacle(settings: Settings, model: str) -> str:
    """Return why a model cannot run on this machine, such as a missing program, or an empty string if it can."""
    if why := find_permanent_obstacle(settings, model):
        return why
    runner, _ = build_runner(settings.models[model])
    if runner.name != ClaudeCliRunner.name:
        return find_missing_program(settings, model)
    try:
        find_program(settings.for_model(model))
    except SettingsError as error:
        return error.problems[0]
    return ""


def find_missing_program(settings: Settings, model: str) -> str:
    """Return the name of the program that a model needs if it is missing here, or an empty string."""
    runner, option = build_runner(settings.models[model])
    return runner.find_missing_program(option, settings.for_model(model)) if isinstance(runner, ProcessRunner) else ""


def try_program(settings: Settings, model: str) -> str:
    """Start the agent's program. Return why the start fails, or an empty string if the program works."""
    runner, option = build_runner(settings.models[model])
    return runner.try_agent(option, settings.for_model(model)) if isinstance(runner, ProcessRunner) else ""


def find_certified_program(settings: Settings, model: str) -> tuple[str, str]:
    """Return the path of the program that a model needs, and the tested version; both empty if it needs no program."""
    runner, option = build_runner(settings.models[model])
    return (
        runner.certified_version(option, settings.for_model(model)) if isinstance(runner, ProcessRunner) else ("", "")
    )


def find_listed_name(settings: Settings, model: str) -> str:
    """Return a model's name in its service's list of models, or an empty string if there is no list."""
    runner, option = build_runner(settings.models[model])
    return runner.listed_name(option, settings.for_model(model)) if isinstance(runner, ProcessRunner) else ""


def find_permanent_obstacle(settings: Settings, model: str) -> str:
    """Return why no turn of a model can ever succeed with these settings and files, or an empty string."""
    runner, _, option = settings.models[model].partition(":")
    try:
        built, rest = build_runner(settings.models[model])
        if runner == "scripted" and option:
            script.load_script(settings.root / option)
        for version in settings.flow_version:
            template.check_template(settings.find_template(model, version))
    except SettingsError as error:
        return error.problems[0]
    except script.ScriptError as error:
        return f"its script cannot be played: {error}"
    return built.find_config_problem(rest, settings.for_model(model)) if isinstance(built, ProcessRunner) else ""
