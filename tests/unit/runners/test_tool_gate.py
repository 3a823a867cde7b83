"""What a policy says about a tool call, and what the hook before each call answers."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.tool_calls import Answerer, Reaction, ToolQuestion, ToolRule, WaitingCall
from tests.runs import ordered
from worker.runners import tool_gate
from worker.runners.agent_sessions import permit_of
from worker.runners.base import ToolOrders
from worker.runners.claude.completion_gate import TOOL_HOOK

ROOT, FOLDER = "/srv/root", "/srv/root/projects/sessions/s/attempts/t0-a-1-1"


def said(tool: str, arguments: dict[str, object], *rules: ToolRule) -> str:
    rule = tool_gate.ruling([each.to_dict() for each in rules], tool, arguments, root=ROOT, folder=FOLDER)
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
        return bool(tool_gate.ruling([rule], "Write", {"file_path": path}, **where))

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


def test_a_digest_is_of_the_call_and_the_same_in_each_delivery() -> None:
    one = tool_gate.digest("Write", {"file_path": f"{FOLDER}/output/a", "content": "x"}, FOLDER)
    other = FOLDER.replace("1-1", "1-2")
    assert one == tool_gate.digest("Write", {"content": "x", "file_path": f"{other}/output/a"}, other)
    assert one != tool_gate.digest("Write", {"file_path": f"{FOLDER}/output/a", "content": "y"}, FOLDER)
    assert one != tool_gate.digest("Edit", {"file_path": f"{FOLDER}/output/a", "content": "x"}, FOLDER)


def test_what_is_shown_of_a_call_is_redacted_and_bounded() -> None:
    call = WaitingCall(
        call="c", tool="B\0ash" * 100, arguments={f"a{n}": "key " + "x" * 9_000 for n in range(50)}, digest="d"
    )
    question = call.question(3, lambda text: text.replace("key", "***"))
    assert len(question.arguments) == 20
    assert all(len(value) <= 2_000 and value.startswith("***") for value in question.arguments.values())
    assert len(question.tool) <= 100
    assert "\0" not in question.tool
    assert ToolQuestion.from_dict(question.to_dict()) == question
    assert ToolQuestion.from_dict({}) is None


def test_a_rule_is_written_without_its_defaults() -> None:
    rule = ToolRule(tool="Bash", who=Answerer.OPERATOR)
    assert rule.to_dict() == {"tool": "Bash", "who": "operator"}
    assert ToolRule(**rule.to_dict()) == rule
    with pytest.raises(ValueError, match="wait_seconds"):
        ToolRule(wait_seconds=0)


def hook(tmp_path: Path, order: object, call: object) -> tuple[int, str]:
    """The hook as the CLI runs it: its exit code, and its word."""
    file = tmp_path / "order.json"
    file.write_text(order if isinstance(order, str) else json.dumps(order))
    given = call if isinstance(call, str) else json.dumps(call)
    argv = [sys.executable, "-I", "-S", str(TOOL_HOOK), str(file)]
    ran = subprocess.run(argv, input=given, capture_output=True, text=True, check=False)
    word = json.loads(ran.stdout)["hookSpecificOutput"]["permissionDecision"] if ran.stdout else ""
    return ran.returncode, word


def test_the_hook_lets_exactly_the_answered_call_run(tmp_path: Path) -> None:
    call = {"tool_name": "Bash", "tool_input": {"command": "git push"}, "tool_use_id": "c1"}
    order = {"rules": [PUSH.to_dict()], "root": ROOT, "folder": FOLDER, "asks": True, "denied": "no"}
    yes = {
        "call": "c1",
        "digest": tool_gate.digest("Bash", {"command": "git push"}, FOLDER),
        "allowed": "yes",
        "said": "",
        "permit": str(tmp_path / "permit"),
    }
    Path(yes["permit"]).touch()
    assert hook(tmp_path, order, call) == (0, "defer")
    assert hook(tmp_path, order | {"answer": yes}, call | {"tool_use_id": "c2"}) == (0, "defer")
    assert hook(tmp_path, order | {"answer": yes}, call) == (0, "allow")
    assert hook(tmp_path, order | {"answer": yes}, call) == (0, "defer"), "a yes is for one run"
    assert hook(tmp_path, order | {"answer": yes | {"permit": "/nowhere/permit"}}, call) == (2, "")
    Path(yes["permit"]).touch()
    assert hook(tmp_path, order | {"answer": yes}, call | {"tool_use_id": "c2"}) == (0, "defer")
    assert hook(tmp_path, order | {"answer": yes}, call | {"tool_input": {"command": "git push -f"}}) == (0, "defer")
    assert hook(tmp_path, order | {"answer": yes | {"allowed": "no"}}, call) == (0, "deny")
    assert hook(tmp_path, order | {"asks": False}, call) == (0, "deny")
    assert hook(tmp_path, order, call | {"agent_id": "a"}) == (0, "deny")
    assert hook(tmp_path, order, call | {"tool_input": {"command": "ls"}}) == (0, "")


def test_the_hook_takes_a_relative_path_from_where_the_shell_is(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    rules = [{"folder": "secrets/*", "do": "deny"}]
    order = {"rules": rules, "root": str(tmp_path), "folder": str(tmp_path / "a"), "asks": True, "denied": "no"}
    call = {"tool_name": "Bash", "tool_input": {"command": "cat ../../secrets/x"}, "tool_use_id": "c"}
    assert hook(tmp_path, order, call) == (0, "")
    assert hook(tmp_path, order, call | {"cwd": str(tmp_path / "a" / "b")}) == (0, "deny")


def test_a_permit_goes_to_the_next_delivery_as_long_as_its_call_has_not_run(tmp_path: Path) -> None:
    question = WaitingCall(call="c", tool="Bash", arguments={}, digest="d").question(1, str)

    def permit(delivery: int, allowed: str = "yes") -> Path | None:
        """What a delivery gets after an answer that was carried out in the second one."""
        tools = ToolOrders(rules=(), root=tmp_path, answered=replace(question, allowed=allowed, answered=2))
        directory = tmp_path / "attempts" / f"t0-a-1-{delivery}"
        directory.mkdir(parents=True)
        return permit_of(ordered(tmp_path, "t0-a", delivery, "x", tools=tools, directory=directory, deadline=0.0))

    first = permit(3)
    assert first
    assert first.exists()
    assert permit(4, "no") is None, "which needs none"
    fifth = permit(5)
    assert fifth
    assert (fifth.exists(), first.exists()) == (True, False), "it moved, past a delivery that never had it"
    assert tool_gate.used_up(str(fifth))
    assert not tool_gate.used_up(str(fifth))
    assert permit(6) is None, "nobody knows whether the call ran"


@pytest.mark.parametrize(
    ("order", "call"), [("{", "{}"), ("{}", "{}"), ("{}", "no JSON"), ('{"rules": 1}', '{"tool_name": 1}')]
)
def test_whatever_goes_wrong_in_the_hook_blocks_the_call(tmp_path: Path, order: str, call: str) -> None:
    assert hook(tmp_path, order, call) == (2, "")
