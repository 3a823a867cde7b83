"""What a policy says about a tool call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from api_client.contract.interruption import Answerer
from api_client.contract.tool_calls import Reaction, ToolRule
from worker.runners import tool_gate
from worker.runners.claude.hooks import TOOL_HOOK

ROOT, FOLDER = "/srv/root", "/srv/root/projects/sessions/s/attempts/turn-a-1-1"


def said(tool: str, arguments: dict[str, object], *rules: ToolRule) -> str:
    rule = tool_gate.find_rule([each.to_dict() for each in rules], tool, arguments, root=ROOT, folder=FOLDER)
    return str(ToolRule(**rule).do) if rule else ""


PUSH = ToolRule(tool="Bash", arguments={"command": "git push*"}, do=Reaction.ASK)


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git push origin",
        "cd x && git push",
        "cd x;git push",
        "true\ngit push",
        "echo `git push`",
        "(git push)",
    ],
)
def test_a_command_is_asked_about_wherever_it_is_joined(command: str) -> None:
    assert said("Bash", {"command": command}, PUSH) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "git log; rm -rf x",
        "git log && x",
        "git log | x",
        "git log > x",
        "git log $(x)",
        "git log `x`",
        "git log $X",
        "git log\nx",
    ],
)
def test_what_is_joined_to_a_command_that_may_run_does_not_run_with_it(command: str) -> None:
    rule = ToolRule(tool="Bash", arguments={"command": "git log*"}, do=Reaction.RUN)
    assert said("Bash", {"command": "git log -1"}, rule) == "run"
    assert said("Bash", {"command": command}, rule) == ""


def test_the_first_rule_that_fits_decides() -> None:
    run = ToolRule(tool="Bash", arguments={"command": "git push origin docs"}, do=Reaction.RUN)
    assert said("Bash", {"command": "git push origin docs"}, run, PUSH) == "run"
    assert said("Bash", {"command": "git push origin docs"}, PUSH, run) == "ask"
    assert said("Write", {"command": "git push"}, PUSH) == ""


def test_a_folder_is_the_real_place_of_a_path(tmp_path: Path) -> None:
    (tmp_path / "adr").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "adr")
    rule = ToolRule(folder="adr/*").to_dict()

    def fits(path: str) -> bool:
        where = {"root": str(tmp_path), "folder": str(tmp_path / "work")}
        return bool(tool_gate.find_rule([rule], "Write", {"file_path": path}, **where))

    assert fits(str(tmp_path / "adr" / "x.md"))
    assert fits("../adr/x.md")
    assert fits("link/x.md")
    assert not fits("x.md")
    assert not fits(str(tmp_path / "adr2" / "x.md"))


@pytest.mark.parametrize(
    ("tool", "arguments", "fits"),
    [
        ("WebFetch", {"url": "x"}, True),
        ("mcp__github__push", {}, True),
        ("Bash", {"command": "curl example.com"}, True),
        ("Bash", {"command": "x; git -C y push"}, True),
        ("Bash", {"command": "echo https://example.com"}, True),
        ("Bash", {"command": "git log"}, False),
        ("Bash", {"command": "curly"}, False),
        ("Read", {"file_path": "a"}, False),
    ],
)
def test_network_fits_calls_that_reach_out(tool: str, arguments: dict[str, object], fits: bool) -> None:
    assert bool(said(tool, arguments, ToolRule(network=True))) is fits


def test_a_rule_is_written_without_its_defaults() -> None:
    rule = ToolRule(tool="Bash", who=Answerer.OPERATOR)
    assert rule.to_dict() == {"tool": "Bash", "who": "operator"}
    assert ToolRule(**rule.to_dict()) == rule
    with pytest.raises(ValueError, match="wait_seconds"):
        ToolRule(wait_seconds=0)


def test_the_hook_takes_a_relative_path_from_where_the_shell_is(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    rules = [{"folder": "secrets/*", "do": "deny"}]
    words = dict.fromkeys(("denied", "later", "unasked", "said"), "no")
    order = {
        "rules": rules,
        "root": str(tmp_path),
        "folder": str(tmp_path / "a"),
        "asks": True,
        "approval_server": None,
    }
    file = tmp_path / "order.json"
    file.write_text(json.dumps(order | words | {"question": str(tmp_path / "question")}))
    call = {"tool_name": "Bash", "tool_input": {"command": "cat ../../secrets/x"}, "tool_use_id": "c"}
    for cwd, denied in (("", False), (str(tmp_path / "a" / "b"), True)):
        argv = [sys.executable, "-I", "-S", str(TOOL_HOOK), str(file)]
        ran = subprocess.run(argv, input=json.dumps(call | {"cwd": cwd}), capture_output=True, text=True, check=True)
        assert ('"deny"' in ran.stdout) == denied, ran
