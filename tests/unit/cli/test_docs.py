"""docs/cli.md speaks of every command and option."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from worker.cli import COMMANDS, cli

TEXT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_explained(name: str) -> None:
    assert f"| `turns {name}" in TEXT


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {"demo", "validate"}])
def test_every_option_is_explained(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in TEXT, parameter.opts[0]
