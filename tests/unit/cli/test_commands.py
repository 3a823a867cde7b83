"""All commands: few at the top, each with an example, and every text that names one names one that exists."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from worker.cli import cli
from worker.cli.commands import COMMANDS as TABLE
from worker.cli.commands import find_plugin_commands
from worker.cli.turns import listing

ROOT = Path(__file__).parents[3]


def walk(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command below a group that is none itself."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from walk(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict(walk(cli))
COMMANDS = [*ALL]
GROUPS = {path.rpartition(" ")[0] for path in ALL} - {""}


def find_command(path: str) -> click.Command:
    return ALL[path]


def test_help_fits_one_screen_and_has_at_most_20_names() -> None:
    names = cli.list_commands(click.Context(cli))
    assert len(names) <= 20, names
    text = cli.get_help(click.Context(cli, info_name="turns"))
    assert len(text.splitlines()) <= 45
    for group in GROUPS:
        command = cli.get_command(click.Context(cli), group)
        assert isinstance(command, click.Group)
        assert len(command.list_commands(click.Context(command))) <= 12


def test_make_help_shows_ten_targets_and_help_all_all_of_them() -> None:
    shown, every = (
        subprocess.run(["make", "-s", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        for target in ("help", "help-all")
    )
    assert len([line for line in shown if "make help-all" not in line]) == 10
    assert set(shown) < set(every)


def test_each_row_of_the_table_is_a_command_or_a_group_of_that_name() -> None:
    for path in [*TABLE, *find_plugin_commands()]:
        assert path in ALL or path in GROUPS, path


@pytest.mark.parametrize("path", COMMANDS)
def test_each_command_has_help_and_an_example_that_parses(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ALL[path]
    assert command.name == path.split()[-1]
    text = command.get_help(click.Context(command, info_name=f"turns {path}"))
    assert text.startswith(f"Usage: turns {path}")
    example = re.sub(r" > .*", "", (command.epilog or "").removeprefix("Example: turns "))
    words = shlex.split(example)
    assert words[: len(path.split())] == path.split(), f"{path}: the example is of another command"
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word.endswith(".backup"):
            (tmp_path / word).touch()
    monkeypatch.setattr(listing, "run_with_settings", lambda *_: "turn-1")
    monkeypatch.setattr(listing, "require_store", lambda settings: settings)
    command.make_context(path, words[len(path.split()) :])  # raises on an unknown option or argument
    assert len(f"  {command.epilog}") <= 80, "it would be wrapped"


RUN_UNTIL_STOPPED = {"run worker", "run relay", "run mcp"}
WRITE_JSON_OR_TEXT = {"policy schema", "notifications secret", "openwebui print"}


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in RUN_UNTIL_STOPPED | WRITE_JSON_OR_TEXT])
def test_each_command_that_prints_a_result_can_print_json(path: str) -> None:
    assert "--json" in {option for parameter in ALL[path].params for option in parameter.opts}


def texts() -> Iterator[tuple[str, str]]:
    """The files in which a user or an operator may read a command."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ends = (".md", ".py", ".toml", ".html", ".yml", ".yaml", ".service", ".j2", ".sh")
    for name in listed.splitlines():
        if name.endswith(ends) and not name.startswith("tests/") and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text()


#: What a text shows as a command: in backticks or tags, after a prompt or a folder, or on a line of a code block.
WRITTEN = re.compile(r"(?:`+|<code>|\$ |/bin/|^;)turns ((?:[a-z][a-z-]*(?: |\b))+[^`<\n]*)", re.MULTILINE)


def find_commands(text: str) -> list[str]:
    """The commands that a text names, without ``turns`` before them."""
    blocks = re.compile("^```.*?^```", re.MULTILINE | re.DOTALL)
    text = blocks.sub(lambda block: re.sub("^ *turns", ";turns", block[0], flags=re.MULTILINE), text)
    return [found[1].strip() for found in WRITTEN.finditer(text)]


MENTIONED = [(name, said) for name, text in texts() for said in find_commands(text)]
OTHERS = {"help", "hello"}  # `turns help COMMAND`, and the plug-in of docs/plugins.md


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command or group that the words begin with, and what is left of them."""
    command: Any = cli
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z][a-z-]*", words[0]):
        names = command.list_commands(click.Context(command))
        if words[0] not in names:
            return None, words
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    return command, words


def test_every_command_that_a_text_names_exists() -> None:
    assert len(MENTIONED) > 300
    wrong = [
        (name, said)
        for name, said in MENTIONED
        if said.split()[0] not in OTHERS and resolve(said.replace("|", " | ").split())[0] is None
    ]
    assert wrong == []


@pytest.mark.parametrize("name", sorted({name for name, _ in MENTIONED if name.endswith(".md")}))
def test_every_option_that_a_page_names_exists(name: str) -> None:
    for file, said in MENTIONED:
        command, rest = resolve(re.split(r"[#|;&>)]| \\$", said)[0].split())
        if file == name and command is not None:
            known = {option for parameter in command.params for option in (*parameter.opts, "--help")}
            given = {word.partition("=")[0] for word in rest if re.fullmatch(r"--[a-z-]+(=.*)?", word)}
            assert given <= known, said


def test_the_sentence_is_seen_when_a_command_is_gone() -> None:
    assert resolve(["turn", "shwo", "last"])[0] is None
    assert resolve(["list", "--json"])[0] is None
    text = "say `turns list --json` or:\n```console\n$ turns show x\n  turns top\n```\nThere are\nturns of two kinds"
    assert find_commands(text) == ["list --json", "show x", "top"]
