"""Every Lua script of the product: the server compiles it, and it keeps the house's line length."""

import re
from collections import Counter
from pathlib import Path

import pytest
import redis

import api_client
import worker
from api_client.contract.settings import Settings
from api_client.store.commands import COMMON, load_script

_ROOMS = [Path(str(room.__file__)).parent for room in (api_client, worker)]
#: The common parts of the commands, which are built into each of them.
_COMMON = {path.stem for path in COMMON}
SCRIPTS = {path.stem: path for room in _ROOMS for path in sorted(room.rglob("*.lua"))}
#: Those that are built: their headers declare their arguments.
COMMANDS = [name for name, path in SCRIPTS.items() if re.search("^-- args: ", path.read_text(), re.MULTILINE)]
_MOST = 120


def too_long(text: str) -> list[int]:
    """Numbers of the lines that are."""
    return [number for number, line in enumerate(text.split("\n"), 1) if len(line) > _MOST]


def as_sent(path: Path, settings: Settings) -> str:
    """The text the server gets: a command's is built, another stands alone."""
    text = path.read_text()
    return load_script(path, settings).text if re.search("^-- args: ", text, re.MULTILINE) else text


def test_every_script_has_a_name_of_its_own() -> None:
    assert len(SCRIPTS) == sum(len(list(room.rglob("*.lua"))) for room in _ROOMS) > 15


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_line_of_this_script_is_over_120_characters(name: str) -> None:
    assert too_long(SCRIPTS[name].read_text()) == []


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in _COMMON])
def test_the_server_compiles_this_script(name: str, settings: Settings, store: redis.Redis) -> None:
    assert store.script_load(as_sent(SCRIPTS[name], settings))


def declared(text: str) -> set[str]:
    """The names that a text declares at the beginning of a line."""
    found = re.findall(r"^(?:local )?(?:function )?(\w+(?:, \w+)*)(?= ?=|\(|$)", text, re.MULTILINE)
    return {name for names in found for name in names.split(", ")} - {"end"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gets_what_it_uses_of_the_common_part_and_nothing_else(name: str, settings: Settings) -> None:
    common = set[str]().union(*(declared(SCRIPTS[part].read_text()) for part in _COMMON))
    assert {"turn", "NOW", "set", "finish", "held_back", "end_holds", "counted"} <= common
    code = re.sub(r"--.*|'[^'\n]*'", "", as_sent(SCRIPTS[name], settings))
    used = Counter(re.findall(r"\w+", code))
    assert (common & used.keys()) - declared(code) == set(), "used and not declared: the server would refuse it"
    functions = set(re.findall(r"^local function (\w+)", code, re.MULTILINE))
    assert {name for name in functions if used[name] == 1} == set()


def unused(text: str) -> set[str]:
    """Arguments that a command's header declares and its code never reads."""
    declared = set(re.findall(r"\w+", " ".join(re.findall(r"^-- args: (.*)$", text, re.MULTILINE))))
    return declared - set(re.findall(r"\w+", re.sub(r"--.*|'[^'\n]*'", "", text)))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reads_every_argument_that_its_header_declares(name: str) -> None:
    text = SCRIPTS[name].read_text()
    assert unused(text) == set()
    assert unused(text.replace("-- args: ", "-- args: another# ", 1)) == {"another"}


def test_a_command_reads_the_fields_that_its_text_names_and_no_other(settings: Settings) -> None:
    [fields] = re.findall(
        r"^local found = redis.call\('HMGET', TURN, (.*)\)$", as_sent(SCRIPTS["append"], settings), re.MULTILINE
    )
    assert set(re.findall(r"\w+", fields)) == {"apart", "cmd", "epoch", "outcome", "request_bytes", "seq", "token"}


def test_a_script_that_does_not_compile_or_has_a_long_line_is_noticed(store: redis.Redis) -> None:
    assert too_long("local a = 1\n" + "-" * 121) == [2]
    with pytest.raises(redis.ResponseError, match="compiling"):
        store.script_load("local x = = 1")
