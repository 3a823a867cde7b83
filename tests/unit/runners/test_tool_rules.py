"""How a call is matched against rules: spellings of commands, places, names of tools, the strictest result."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, cast

import pytest

from api_client.contract.settings import Settings
from tests.approvals.spellings import (
    HARMLESS,
    HARMLESS_PATHS,
    PUSHES,
    READS,
    REMOVALS,
    TOOL_HARMLESS,
    TOOL_READS,
    placed,
)
from tests.runs import ordered
from worker.agents.runner_lookup import build_runner
from worker.plugins.acp import permissions
from worker.plugins.codex import runner as codex
from worker.runners import tool_gate
from worker.runners.base import ToolOrders
from worker.runners.claude.hooks import TOOL_HOOK
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.tool_rules.agent_tools import AGENTS
from worker.runners.tool_rules.patterns import ANY, GLOB, Match, match_pattern

ROOT, FOLDER = "/srv/root", "/srv/root/projects/sessions/s/attempts/turn-a-1-1"
CODEX_HOOK = Path(codex.__file__).with_name("blocking_hook.py")
ASK_PUSH = {"tool": "Bash", "arguments": {"command": "git push*"}}
DENY_RM = {"tool": "Bash", "arguments": {"command": "rm *"}, "do": "deny"}
SECRETS = {"folder": "secrets/*", "do": "deny"}


def said(command: object, *rules: dict[str, Any], tool: str = "Bash", **more: object) -> str:
    """What the rules say about a command; ``none`` where none fits."""
    given = {"command": command, **more}
    rule = tool_gate.find_rule(rules, tool, given, root=ROOT, folder=FOLDER)
    return str(rule.get("do", "ask")) if rule else "none"


def let(pattern: str) -> dict[str, Any]:
    return {"tool": "Bash", "arguments": {"command": pattern}, "do": "run"}


def test_no_spelling_of_a_command_passes_a_rule_about_it() -> None:
    assert [each for each in PUSHES if said(each, ASK_PUSH) != "ask"] == []
    assert [each for each in REMOVALS if said(each, DENY_RM) != "deny"] == []
    assert len(PUSHES) + len(REMOVALS) + len(READS) + len(TOOL_READS) >= 500


def test_a_command_that_only_speaks_of_another_is_let_pass() -> None:
    assert [each for each in HARMLESS if {said(each, ASK_PUSH), said(each, DENY_RM)} != {"none"}] == []
    assert len(HARMLESS) + len(HARMLESS_PATHS) + len(TOOL_HARMLESS) >= 160


@pytest.mark.parametrize("command", [*PUSHES, *REMOVALS])
def test_a_rule_that_lets_commands_run_fits_no_odd_spelling_of_another(command: str) -> None:
    rules = [let("echo*"), let("ls*"), let("true*"), let("cat*"), let("cd*"), let("find*"), let(":")]
    assert said(command, *rules) != "run"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("git log", "run"),
        ("git log -1", "run"),
        ("git  log", "run"),
        ("git log && git status", "run"),
        ("git log | head -5", "run"),
        ("git log; git status", "run"),
        ("git log 2>&1", "run"),
        ("git log 2>/dev/null", "run"),
        ("git log -- *.py", "run"),
        ("git log; ls", "none"),
        ("git log > x", "none"),
        ("git log < x", "none"),
        ("git log $X", "none"),
        ("git log $(x)", "none"),
        ("A=1 git log", "none"),
        ("GIT_PAGER=x git log", "none"),
        ("PATH=x; git log", "none"),
        ("/tmp/git log", "none"),
        ("./git log", "none"),
        ("g?t log", "none"),
        ("'git log'", "none"),
        ("git log <<< x", "none"),
        ("if git log; then git status; fi", "none"),
        ("git log (", "none"),
        ("git -c core.pager=x log", "none"),
    ],
)
def test_a_command_is_let_run_only_as_it_is_written_and_only_with_all_that_is_on_its_line(
    command: str, expected: str
) -> None:
    assert said(command, let("git log*"), let("git status*"), let("head *")) == expected


def test_of_the_commands_on_a_line_the_strictest_result_counts() -> None:
    rules = [let("git log*"), let("timeout *"), ASK_PUSH, DENY_RM]
    for line, expected in {
        "git log; git push": "ask",
        "git push; rm x": "deny",
        "rm x; git log": "deny",
        "git log; ls": "none",
        "sudo rm x": "deny",
        "timeout 5 ls": "run",
        "$X": "deny",
        "git $X": "ask",
        "timeout 5 git push | rm x": "deny",
    }.items():
        assert said(line, *rules) == expected, line
    assert said("git log && git log -1", let("git log*"), {"arguments": {"command": "*"}}) == "run"
    assert said("cat <<E\nsecret\nE", {**DENY_RM, "arguments": {"command": "*secret*"}}) == "deny"
    assert said("git log --grep=push", let("git log*"), {**DENY_RM, "arguments": {"command": "*push*"}}) == "run"
    owner, operator = ASK_PUSH, {"arguments": {"command": "npm publish*"}, "who": "operator"}
    found = tool_gate.find_rule(
        [owner, operator], "Bash", {"command": "git push; npm publish"}, root=ROOT, folder=FOLDER
    )
    assert found == operator


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("rm -rf*", "rm -rf x"),
        ("/usr/bin/git push*", "git push"),
        ("./deploy.sh*", "sh deploy.sh now"),
        ("deploy.sh*", "bash -x ./deploy.sh now"),
        ("deploy.sh*", "source tools/deploy.sh"),
        ("manage.py migrate*", "python3 -u manage.py migrate"),
        ("npm publish*", "npm --prefix x publish"),
        ("docker push*", "docker --context x push y"),
        ("* push*", "git push"),
        ("git push", "git push"),
        ("git add * && git push*", "git add x && git push"),
        ("echo [id].tsx", "echo [id].tsx"),
        ("rm ?", "rm '?'"),
        ("rm file1", "rm file$((0 + 1))"),
        ("git push", "find . -exec git push ';'"),
        ("git push", "env -S 'git  push'"),
        ("git push", "env '-Sgit push'"),
    ],
)
def test_a_pattern_fits_program_and_arguments_whatever_stands_between(pattern: str, command: str) -> None:
    assert said(command, {"arguments": {"command": pattern}}) == "ask"


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("[id].tsx", "[id].tsx", Match.DOES),
        ("[id].tsx", "i.tsx", Match.NO),
        ("a?c", "abc", Match.NO),
        ("a*c*e", "abcde", Match.DOES),
        ("*aa", "a", Match.NO),
        ("a*a", "a", Match.NO),
        ("*", "", Match.DOES),
        ("git push*", f"git{ANY}", Match.MAY),
        ("git push*", f"git log {ANY}", Match.NO),
        ("*x", f"y{ANY}", Match.MAY),
        ("git -C*", f"git {GLOB}", Match.NO),
        ("git a-b", f"git a{GLOB}b", Match.MAY),
    ],
)
def test_of_a_pattern_only_the_star_is_special(pattern: str, text: str, expected: Match) -> None:
    assert match_pattern(pattern, text) is expected


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("secrets", "docs", "work/run/output", "secretsx", "my-secrets"):
        (tmp_path / folder).mkdir(parents=True)
    for file, text in {"secrets/key.txt": "top", "docs/x.md": "x", "work/run/x.txt": "x", "README.md": "x"}.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "work/run/way").symlink_to(tmp_path / "secrets")
    return tmp_path


def touches(root: Path, tool: str, given: dict[str, Any], rule: dict[str, Any] = SECRETS) -> bool:
    return bool(tool_gate.find_rule([rule], tool, placed(given, root), root=str(root), folder=str(root / "work/run")))


def test_no_way_into_a_folder_passes_a_rule_about_it(project: Path) -> None:
    assert [each for each in READS if not touches(project, "Bash", {"command": each})] == []
    assert [each for each in TOOL_READS if not touches(project, *each)] == []
    assert touches(project, "Grep", {"pattern": "x"}, {"folder": "work/run/output"}), (
        "without a path it searches its folder"
    )
    for pattern in ("secrets", "secrets/", "secrets/key*", "*/key.txt", "sec*"):
        assert touches(project, "Read", {"file_path": "R/secrets/key.txt"}, {"folder": pattern}), pattern


def test_what_touches_another_folder_is_let_pass(project: Path) -> None:
    assert [each for each in HARMLESS_PATHS if touches(project, "Bash", {"command": each})] == []
    assert [each for each in TOOL_HARMLESS if touches(project, *each)] == []


@pytest.mark.parametrize(
    ("tool", "given", "runs"),
    [
        ("Write", {"file_path": "R/docs/y.md", "content": "../x"}, True),
        ("Write", {"file_path": "R/x.md"}, False),
        ("Write", {"content": "x"}, False),
        ("edit", {"path": "R/docs/x.md", "path 1": "R/secrets/y"}, False),
        ("Grep", {"pattern": "x", "path": "R/docs"}, True),
        ("Grep", {"pattern": "x", "path": "R"}, False),
        ("Grep", {"pattern": "x"}, False),
        ("Glob", {"pattern": "R/secrets/*", "path": "R/docs"}, False),
        ("mcp__x__read", {"paths": ["R/docs/x.md", "R/x"]}, False),
        ("Bash", {"command": "cat R/docs/x.md"}, False),
        ("Bash", {"command": "R/docs/run.sh"}, False),
        ("LS", {"path": "R"}, False),
        ("LS", {"path": "R/docs"}, True),
    ],
)
def test_a_call_is_let_run_in_a_folder_only_when_all_it_names_is_there(
    project: Path, tool: str, given: dict[str, Any], runs: bool
) -> None:
    assert touches(project, tool, given, {"folder": "docs/*", "do": "run"}) is runs


@pytest.mark.parametrize(
    ("command", "fits"),
    [
        ("c''url x", True),
        ("/usr/bin/curl x", True),
        ("A=1 wget x", True),
        ("git -C . push", True),
        ("sh -c 'git fetch'", True),
        ("find . | xargs scp", True),
        ("cat < /dev/tcp/h/1", True),
        ("$X y", True),
        ("echo curl", False),
        ("git log --grep curl", False),
        ("man wget", False),
        ("git stash push", False),
    ],
)
def test_network_programs_are_seen_in_every_spelling(command: str, fits: bool) -> None:
    assert (said(command, {"network": True, "do": "deny"}) == "deny") is fits


def test_a_tool_with_two_names_is_one_tool() -> None:
    for name, other in [("Task", "Agent"), ("Agent", "Task"), ("KillShell", "TaskStop")]:
        assert said("", {"tool": name, "do": "deny"}, tool=other) == "deny"
    assert said("", {"tool": "Task", "do": "deny"}, tool="TaskStop") == "none"


def test_an_argument_list_is_a_command_too() -> None:
    assert said(["bash", "-lc", "git push"], ASK_PUSH) == "ask"
    assert said(["git", "-C", ".", "push"], ASK_PUSH) == "ask"
    assert said(["echo", "git push"], ASK_PUSH) == "none"
    assert said(["git", 1], ASK_PUSH) == "ask"


@pytest.mark.parametrize(
    "command", ["x" * 60_000, "(" * 5_000 + ")" * 5_000, "echo " + "$(" * 300 + ")" * 300, "git \0push", "a\rb", "\1"]
)
def test_what_cannot_be_read_fits_every_rule_about_commands_and_none_that_lets_run(command: str) -> None:
    assert said(command, ASK_PUSH) == "ask"
    assert said(command, let("x*"), let("*")) in {"none", "run" if command.startswith("x") else "none"}


def test_without_its_parser_every_command_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: "/nowhere")
    assert said("ls", ASK_PUSH) == "ask"
    assert said("ls", let("ls*")) == "none"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"kind": "execute"}, "deny"),
        ({"kind": "execute", "locations": [{"path": "work/run"}]}, "deny"),
        ({"kind": "other"}, "deny"),
        ({"kind": "edit", "locations": [{"path": "work/run/x"}]}, ""),
        ({"kind": "edit", "locations": [{"path": "secrets/x"}]}, "deny"),
        ({"kind": "read", "rawInput": {"filePath": "x"}}, ""),
    ],
)
def test_a_call_that_shows_no_input_may_touch_any_folder(project: Path, call: dict[str, Any], expected: str) -> None:
    assert permissions.apply_rules(call, [SECRETS], str(project), str(project)) == expected
    assert permissions.apply_rules(call, [{**SECRETS, "do": "run"}], str(project), str(project)) in {"", "run"}


def test_the_table_in_the_docs_is_what_the_code_knows_of_agents() -> None:
    page = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
    for agent, (asks, silent) in AGENTS.items():
        names = ", ".join(f"`{name}`" for name in silent) or "-"
        asked = "every tool" if agent == "claude_cli" else ", ".join(f"`{name}`" for name in asks)
        assert f"| `{agent}` | {asked} | {names} |" in page, agent


@pytest.mark.parametrize(
    ("agent", "rule", "refused"),
    [
        ("acp:opencode:m", {"tool": "search", "do": "deny"}, True),
        ("acp:opencode:m", {"tool": "search", "do": "run"}, False),
        ("acp:opencode:m", {"tool": "*", "do": "deny"}, False),
        ("acp:opencode:m", {"tool": "execute", "do": "deny"}, False),
        ("acp:opencode:m", {"tool": "Write", "do": "deny"}, False),
        ("codex:m", {"tool": "write_stdin"}, True),
        ("acp:mine.yaml:m", {"tool": "read", "do": "deny"}, False),
    ],
)
def test_a_turn_whose_agent_never_asks_about_a_ruled_tool_is_not_run(
    agent: str, rule: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    runner, option = build_runner(agent)
    made = cast("Any", type(runner))(agents=AgentProcesses(), settings=Settings(root=tmp_path))
    order = ordered(tmp_path, "turn-a", 1, "x", tools=ToolOrders(rules=(rule,), root=tmp_path), option=option)
    found = made._build_run(order)
    said = getattr(getattr(found, "completion", None), "reason", "")
    assert ("without asking" in said) is refused, said


@pytest.mark.parametrize(("flags", "hook"), [(["-I", "-S"], TOOL_HOOK), (["-S", "-P"], CODEX_HOOK)])
def test_a_hook_that_does_not_find_its_rules_lets_nothing_run(flags: list[str], hook: Path, tmp_path: Path) -> None:
    alone = tmp_path / "a" / "b" / "c" / hook.name
    alone.parent.mkdir(parents=True)
    alone.write_text(hook.read_text())
    done = subprocess.run(
        [sys.executable, *flags, str(alone), "x"], input="{}", capture_output=True, text=True, check=False
    )
    assert done.returncode == 2


@pytest.mark.parametrize(("flags", "hook"), [(["-I", "-S"], TOOL_HOOK), (["-S", "-P"], CODEX_HOOK)])
@pytest.mark.parametrize("command", [*PUSHES[::40], *HARMLESS[::40]])
def test_the_real_hooks_find_the_parser(flags: list[str], hook: Path, command: str, tmp_path: Path) -> None:
    named = {name: str(tmp_path / name) for name in ("question", "seen")}
    order = {
        "rules": [{**ASK_PUSH, "do": "deny"}],
        "root": ROOT,
        "folder": FOLDER,
        "asks": True,
        "denied": "No.",
        "later": "Later.",
    }
    (tmp_path / "order").write_text(json.dumps({**order, **named, "answer": None, "approval_server": None}))
    call = {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": "c"}
    argv = [sys.executable, *flags, str(hook), str(tmp_path / "order")]
    done = subprocess.run(argv, input=json.dumps(call), capture_output=True, text=True, check=False, env={})
    denied = done.returncode == 2 or '"deny"' in done.stdout
    assert denied is (command in PUSHES), done.stderr
