"""Locates the Claude CLI. Imports little, because ``turns run worker`` uses this module before it starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings


def find_program(settings: Settings) -> str:
    """Return the path of the Claude CLI. Raises ``SettingsError`` if the CLI is not installed."""
    found = shutil.which(str(Path(settings.claude_path).expanduser()))
    if found is None:
        raise SettingsError([f"HELIX_CLAUDE_PATH={settings.claude_path!r}: no such program; see docs/claude-cli.md"])
    return str(Path(found).absolute())


def missing_programs(settings: Settings) -> list[str]:
    """Return one line per missing CLI program, naming the models that need the program."""
    models: dict[str, list[str]] = {}
    for model, runner in settings.models.items():
        try:
            if runner.partition(":")[0] == "claude_cli":
                find_program(settings.for_model(model))
        except SettingsError as error:
            models.setdefault(error.problems[0], []).append(model)
    missing = {model for named in models.values() for model in named}
    kept = ",".join(f"{name}={spec}" for name, spec in settings.models.items() if name not in missing)
    ways = f"install the CLI for this user, or do without it: HELIX_MODELS={kept or 'scripted=scripted'}"
    return [f"model {', '.join(named)}: {problem}; {ways}" for problem, named in models.items()]
