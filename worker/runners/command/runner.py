"""Runs a declared command: ``command:FILE``, and ``command:FILE:MODEL`` for what ``{model}`` is to name."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api_client.contract.settings import Settings
from worker.files.safe_io import opened, read
from worker.runners.base import MAX_ANSWER, Completion
from worker.runners.command.rule import CommandOutput, CommandRules, read_command
from worker.runners.guard.supervision import Ending
from worker.runners.programs.declaration import AgentProgram
from worker.runners.programs.declaration_file import load
from worker.runners.programs.runner import ProgramRunner, Run


class _Heard(CommandOutput):
    def judge(self, ending: Ending, evidence: dict[str, Any]) -> Completion:
        """The verdict by its rule."""
        return self.completion(ending.exit.code, evidence)


class CommandRunner(ProgramRunner):
    """Runs the command that a file declares; a relative path counts from ``HELIX_ROOT``."""

    name = "command"
    #: Its output may be a text, whose empty lines count.
    blank_lines = True
    can_only_read = False
    needs_witness = False

    def command(self, option: str, settings: Settings) -> CommandRules:
        """The command that an option names. Raises ``DeclarationError``."""
        return load(settings.root / option.partition(":")[0], read_command)

    def program(self, option: str, settings: Settings) -> AgentProgram:
        """The program of a model with this option."""
        return self.command(option, settings).program

    def arguments(self, run: Run) -> Sequence[str]:
        """Return the command line, with the prompt behind it where the command wants it there."""
        found = super().arguments(run)
        return [*found, run.prompt] if self.command(run.order.option, run.settings).prompt == "argument" else found

    def stdin(self, run: Run) -> bytes:
        """Return the prompt, where the command reads it from standard input."""
        return super().stdin(run) if self.command(run.order.option, run.settings).prompt == "stdin" else b""

    def hear(self, run: Run) -> _Heard:
        """Return the reader of its output."""
        return _Heard(self.command(run.order.option, run.settings), functools.partial(_content, run.order.directory))


def _content(directory: Path, name: str) -> str | None:
    """The text of a file in a delivery's folder; None where there is none. Links are not followed."""
    *folders, file = Path(name).parts
    try:
        with opened(directory) as folder:
            return _below(folders, file, folder)
    except OSError:
        return None


def _below(folders: Sequence[str], file: str, parent: int) -> str:
    if not folders:
        return read(file, parent, MAX_ANSWER).decode("utf-8", "replace")
    with opened(folders[0], parent) as folder:
        return _below(folders[1:], file, folder)
