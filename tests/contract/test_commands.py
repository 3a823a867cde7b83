"""How a Lua command's text is put together: what it uses of the common files, and nothing else."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from api_client.store.commands import Script, load_plain_script, load_script

Link = Callable[[str], Script]


@pytest.fixture
def link(tmp_path: Path) -> Link:
    def build(text: str) -> Script:
        path = tmp_path / "command.lua"
        path.write_text(text)
        number = len(list(tmp_path.iterdir()))
        path = path.rename(tmp_path / f"command{number}.lua")  # built texts are kept by path
        return load_script(path, Settings(root=tmp_path))

    return build


def declared(script: Script) -> set[str]:
    found = re.findall(r"^local (?:function )?(\w+(?:, \w+)*)", script.text, re.MULTILINE)
    return {name for names in found for name in names.split(", ")}


def fields(script: Script) -> set[str]:
    [listed] = re.findall(r"^local found = redis.call\('HMGET', TURN, (.*)\)$", script.text, re.MULTILINE)
    return set(re.findall(r"\w+", listed))


def test_a_command_is_given_its_arguments_by_name_in_the_order_of_its_header(link: Link) -> None:
    script = link("-- args: token nth#\n-- args: why ...\nreturn { token, nth, why, REST }")
    assert script.build_argv("t1", {"why": "w", "nth": 3, "token": "k"}, ["a", "b"]) == ("t1", "k", 3, "w", "a", "b")
    for line in (
        "local token = ARGV[2]",
        "local nth = tonumber(ARGV[3])",
        "local why = ARGV[4]",
        "local REST = 5",
    ):
        assert f"\n{line}\n" in script.text


@pytest.mark.parametrize("values", [{"token": "k"}, {"token": "k", "nth": 1, "more": 2}, {"token": "k", "n": 1}])
def test_an_argument_that_is_missing_or_unknown_is_an_error_that_names_it(link: Link, values: dict[str, int]) -> None:
    wrong = sorted(values.keys() ^ {"token", "nth"})
    with pytest.raises(TypeError, match=f"lua has other arguments: {', '.join(wrong)}$"):
        link("-- args: token nth#\nreturn nth").build_argv("t1", values)


def test_texts_behind_the_arguments_are_an_error_where_none_are_declared(link: Link) -> None:
    with pytest.raises(TypeError, match="no rest"):
        link("-- args: token\nreturn token").build_argv("t1", {"token": "k"}, ["more"])
    assert "REST" not in link("-- args: token\nreturn token").text


def test_a_command_gets_what_it_uses_and_what_that_uses(link: Link) -> None:
    assert {"count", "count_lines", "counted"} <= declared(link("-- args:\ncount('a', 1)"))
    small = declared(link("-- args:\nreturn NOW"))
    assert {"NOW", "clock", "flush", "number"} <= small
    assert not {"count", "finish", "held_back", "GIVEN_UP", "STRIKES"} & small


def test_a_name_in_a_comment_or_in_a_text_is_no_use_of_it(link: Link) -> None:
    found = declared(link("-- args:\n-- finish\nreturn { 'give_up', \"look_again\" } -- STRIKES"))
    assert not {"finish", "give_up", "look_again", "STRIKES"} & found


def test_a_name_that_is_declared_with_others_is_found(link: Link) -> None:
    assert {"DUE", "FINISHED", "INBOX", "DEAD"} <= declared(link("-- args:\nreturn INBOX"))


def test_a_function_that_is_declared_first_and_made_later_comes_whole(link: Link) -> None:
    text = link("-- args:\nend_holds()").text
    assert text.index("local end_holds") < text.index("end_holds = function()") < text.index("heard_of_service(turn.")


def test_the_settings_are_constants_of_the_text(link: Link, tmp_path: Path) -> None:
    assert f"\nlocal STRIKES = {Settings(root=tmp_path).strikes}\n" in link("-- args:\nreturn STRIKES").text


def test_a_command_reads_the_fields_that_it_or_what_it_uses_names(link: Link) -> None:
    always = fields(link("-- args:\nreturn 1"))
    assert always == {"apart", "outcome", "request_bytes", "seq"}
    assert fields(link("-- args:\nreturn turn.token")) == always | {"token"}
    assert fields(link("-- args:\nreturn number('cmd')")) == always | {"cmd"}
    assert {"deadline_at", "stop", "sealed"} <= fields(link("-- args:\nreturn called_off()"))
    assert fields(link("-- args:\n-- turn.token number('cmd')\nreturn 'turn.state'")) == always


def test_a_command_whose_header_says_so_reads_only_those_fields(link: Link) -> None:
    assert fields(link("-- args:\n-- reads: state stop\nreturn turn.token")) == {"seq", "state", "stop"}


def test_each_field_gets_its_own_value_of_those_that_are_read(link: Link) -> None:
    text = link("-- args:\n-- reads: state next\nreturn 1").text
    assert "redis.call('HMGET', TURN, 'next', 'seq', 'state')" in text
    assert "\nturn = { next = found[1], seq = found[2], state = found[3] }\n" in text


def test_only_the_record_lies_around_the_function_of_the_command(link: Link) -> None:
    around, inside = link("-- args:\nset('a', 1)\nreturn finish('passed', {}, '')").text.split(
        "local function command()"
    )
    assert {"set", "emit", "flush", "took"} <= set(re.findall(r"^local function (\w+)", around, re.MULTILINE))
    assert {"finish", "model", "count_in"} <= set(re.findall(r"^local function (\w+)", inside, re.MULTILINE))


def test_a_table_of_the_settings_is_made_only_where_it_is_asked_for(link: Link) -> None:
    text = link("-- args:\ntook('time.turn', 1, '')\nreturn give_up('dead')").text
    assert re.search(r"^local function BOUNDS_MS\(\) return \{ 10, 50, .* \} end$", text, re.MULTILINE)
    assert re.search(r"^local function GIVEN_UP\(\) return \{ .* \} end$", text, re.MULTILINE)
    assert not re.findall(r"^local [A-Z_]+ = \{", text, re.MULTILINE)


def test_what_a_command_wrote_is_stored_when_it_has_answered(link: Link) -> None:
    text = link("-- args:\nset('a', 1)").text
    assert text.startswith("#!lua\n")
    assert re.search(r"\nlocal reply = command\(\)\nflush\(\)\nreturn reply\n$", text)


def test_a_command_is_known_by_the_hash_of_its_text(link: Link, tmp_path: Path) -> None:
    alone = tmp_path / "alone.lua"
    alone.write_text("#!lua\nreturn 1\n")
    for script in (link("-- args:\nreturn 1"), load_plain_script(alone)):
        assert script.sha == hashlib.sha1(script.text.encode(), usedforsecurity=False).hexdigest()
    assert load_plain_script(alone).text == "#!lua\nreturn 1\n"
