"""docs/cli.md speaks of every command and option."""

import re
from pathlib import Path

import click
import pytest

from tests.integration.test_access_table import routes
from worker.cli import COMMANDS as OURS
from worker.cli import cli, find_plugin_commands

COMMANDS = [*OURS, *find_plugin_commands()]
TEXT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_explained(name: str) -> None:
    assert f"- `turns {name}" in TEXT


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {"demo", "validate"}])
def test_every_option_is_explained(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in TEXT, parameter.opts[0]


# docs/operations.md answers operators' questions with commands and pages that exist.

OPERATIONS = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
TABLE = OPERATIONS[OPERATIONS.index("## Questions") : OPERATIONS.index("## When something is wrong")]


@pytest.mark.parametrize("written", sorted(set(re.findall(r"`turns ([^`]+)`", OPERATIONS))))
def test_every_command_and_option_exists(written: str) -> None:
    name, *rest = written.split()
    assert name in COMMANDS, written
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command = command.get_command(click.Context(command), rest.pop(0))
        assert command is not None, written
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("-")} <= known, written


def test_every_question_has_a_command_and_every_page_exists() -> None:
    rows = [line.split("|")[1:-1] for line in TABLE.splitlines() if line.startswith("|") and "?" in line]
    assert len(rows) >= 7
    served = {path for _, path in routes()}
    for question, command, page in rows:
        assert "`turns " in command, question
        for path in re.findall(r"`(/[^`]*)`", page):
            assert path.partition("?")[0].replace("ID", "{turn_id}") in served, path
