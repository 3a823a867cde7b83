"""docs/cli.md speaks of every command and option."""

import re
from pathlib import Path

import click
import pytest

from tests.integration.test_access_table import routes
from tests.unit.cli.test_commands import COMMANDS, find_command

TEXT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_is_explained(path: str) -> None:
    group, _, name = path.rpartition(" ")
    assert f"- `turns {path}" in TEXT or re.search(rf"- `turns {group} .*`{name}`", TEXT)


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in {"demo", "validate"}])
def test_every_option_is_explained(path: str) -> None:
    for parameter in find_command(path).params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in TEXT, parameter.opts[0]


# docs/operations.md answers operators' questions with commands and pages that exist.

OPERATIONS = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
TABLE = OPERATIONS[OPERATIONS.index("## Questions") : OPERATIONS.index("## When something is wrong")]


def test_every_question_has_a_command_and_every_page_exists() -> None:
    rows = [line.split("|")[1:-1] for line in TABLE.splitlines() if line.startswith("|") and "?" in line]
    assert len(rows) >= 7
    served = {path for _, path in routes()}
    for question, command, page in rows:
        assert "`turns " in command, question
        for path in re.findall(r"`(/[^`]*)`", page):
            assert path.partition("?")[0].replace("ID", "{turn_id}") in served, path
