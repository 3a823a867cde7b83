"""A model's block of the settings file holds at the start and in ``turns doctor`` as it does in a run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.settings import Settings
from worker.cli.checks import claude
from worker.cli.checks.doctor import _check_agents
from worker.cli.checks.finding import Finding
from worker.cli.checks.machine import check_machine
from worker.cli.checks.models import check_models
from worker.cli.checks.policies import check_policies
from worker.runners.claude.cli_program import missing_programs


def program(folder: Path, name: str, says: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def of_machine(settings: Settings) -> Iterator[Finding]:
    return check_machine(settings)


def at_start(settings: Settings) -> Iterator[Finding]:
    return (Finding("start", "wrong", problem, "x") for problem in missing_programs(settings))


_MEASURED = f"{claude.MEASURED} (Claude Code)"


@pytest.mark.parametrize(
    ("check", "look", "runner", "name", "good", "bad"),
    [
        ("start", at_start, "claude_cli", "claude_path", _MEASURED, "no-such-claude"),
        ("claude", _check_agents, "claude_cli", "claude_path", _MEASURED, "no-such-claude"),
        ("claude version", _check_agents, "claude_cli", "claude_path", _MEASURED, "9.9.9 (Claude Code)"),
        ("claude key", _check_agents, "claude_cli", "claude_api_key", "sk", ""),
        ("claude key", _check_agents, "claude_cli", "claude_env", ("HELIX_TEST_KEY",), ()),
        ("claude call log", _check_agents, "claude_cli", "claude_env", (), ("CLAUDE_CODE_USE_BEDROCK",)),
        ("sandbox", of_machine, "scripted", "sandbox", "off", "required"),
        ("validators", of_machine, "scripted", "validators", (), ("no_such_rule",)),
        ("model c", check_models, "codex:m", "agent_path", "codex-cli 0.169.0", "no-such-codex"),
        ("version c", check_models, "codex:m", "agent_path", "codex-cli 0.169.0", "codex-cli 0.171.0"),
        ("version c", check_models, "acp:opencode:m", "agent_path", "1.18.33", "1.18.34"),
        ("version c", check_models, "acp:qwen:m", "agent_path", "0.24.4", "10.24.4"),
        ("version c", check_models, "acp:kimi:m", "agent_path", "kimi 2.1.0", ""),
    ],
)
def test_the_block_of_a_model_is_what_is_checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    look: Callable[[Settings], Iterator[Finding]],
    runner: str,
    name: str,
    good: Any,
    bad: Any,
) -> None:
    monkeypatch.setenv("HELIX_TEST_KEY", "sk")
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    monkeypatch.setattr(claude, "check_hooks", lambda _: Finding("claude hooks", "ok", ""))
    monkeypatch.setattr("worker.cli.checks.models.list_service_models", lambda *_: None)
    monkeypatch.setattr("worker.runners.sandbox.bubblewrap.find_obstacle", lambda: "no sandbox here")
    if name.endswith("_path"):
        good, bad = (
            each if each.startswith("no-such") else program(tmp_path, f"p{hash(each)}", each) for each in (good, bad)
        )
    usual = {"openai_url": "http://127.0.0.1:9", "claude_path": program(tmp_path, "claude", _MEASURED)}

    def told(everywhere: Any, in_block: Any) -> bool:
        given = usual | {name: everywhere}
        settings = Settings(root=tmp_path, models={"c": runner}, model_settings={"c": {name: in_block}}, **given)
        return any(found.state != "ok" and found.check == check for found in look(settings))

    assert (told(bad, good), told(good, bad)) == (check == "validators", True)


def test_models_with_programs_of_their_own_are_each_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude, "check_hooks", lambda _: Finding("claude hooks", "ok", ""))
    own = {"a": {"claude_path": program(tmp_path, "one", "1.0")}, "b": {"claude_path": "no-such-claude"}}
    settings = Settings(root=tmp_path, models=dict.fromkeys("ab", "claude_cli"), model_settings=own)
    said = {(found.check, found.message.partition(":")[0]) for found in _check_agents(settings) if found.state != "ok"}
    assert {("claude version", "a"), ("claude", "b")} <= said
    assert [problem.partition(":")[0] for problem in missing_programs(settings)] == ["model b"]


@pytest.mark.parametrize(
    ("code", "option", "problem"),
    [
        ("async def book(context):\n    yield 'x'", "book", ""),
        ("def book(context, more=1):\n    return 'x'", "book:m1", ""),
        ("def book(*all):\n    return 'x'", "book", ""),
        ("class Book:\n    def __init__(self, context):\n        pass", "Book", ""),
        ("book = 5", "book", "has no function 'book'"),
        ("def book(context):\n    return 'x'", "other", "has no function 'other'"),
        ("def book():\n    return 'x'", "book", "does not take the context alone"),
        ("def book(context, *, must):\n    return 'x'", "book", "does not take the context alone"),
        ("def book(a, b):\n    return 'x'", "book", "does not take the context alone"),
        ("import no_such_module", "book", "cannot be imported: ModuleNotFoundError"),
        ("def book(:", "book", "cannot be imported: SyntaxError"),
        ("raise SystemExit(0)", "book", "cannot be imported"),
        ("import os\nos._exit(0)", "book", "cannot be imported"),
        ("print('hello')\ndef book(context):\n    return 'x'", "book", ""),
        ("", "", "name the agent's function"),
    ],
)
def test_a_python_model_that_cannot_be_run_is_told(tmp_path: Path, code: str, option: str, problem: str) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "books.py").write_text(code)
    (found,) = check_models(Settings(root=tmp_path, models={"m": f"shelf.books:{option}"}))
    assert (found.state, problem in found.message) == ("wrong" if problem else "ok", True), found
    assert "docs/agents.md" in found.fix or not problem


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", "mine.py: needs one class of ResponseValidator"),
        ("raise RuntimeError('broken')", "mine.py: RuntimeError: broken"),
        ("import os; os._exit(0)", "loading its rules ended their process"),
        ("import time; time.sleep(600)", "its rules take longer than 3 s to load"),
        ("print('hello')\n{RULE}", ""),
        ("import subprocess; subprocess.Popen(['sleep', '25'])\n{RULE}", ""),
    ],
)
def test_a_policy_whose_own_rules_cannot_be_made_is_wrong(
    code: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in code:
        monkeypatch.setattr("worker.cli.checks.policies._TO_LOAD", 20.0 if "Popen" in code else 3.0)
    rule = (
        "from worker.enforcement import ResponseValidator\nclass Mine(ResponseValidator):\n    name = 'mine'\n"
        "    def validate(self, response, context):\n        return []\n"
    )
    (tmp_path / "mine.py").write_text(code.replace("{RULE}", rule))
    (tmp_path / "policy.yaml").write_text("rules: [step_marker, mine.py]\n")
    found = list(check_policies(Settings(root=tmp_path, policy=str(tmp_path / "policy.yaml"))))
    assert found[0].state == ("wrong" if problem else "ok"), found
    assert problem in found[0].message


def test_a_python_model_whose_import_takes_too_long_is_told_without_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.plugins.python.runner._TO_IMPORT", 0.3)
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "books.py").write_text("import time\ntime.sleep(600)")
    (found,) = check_models(Settings(root=tmp_path, models={"m": "shelf.books:book"}))
    assert found.message == "shelf.books cannot be imported: it took longer than 0.3 s"


def test_a_python_model_whose_module_is_missing_is_told_and_of_a_service_without_its_model_the_right_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = check_models(Settings(root=tmp_path, models={"m": "no.such:book"}))
    assert (found.state, "no.such cannot be imported" in found.message) == ("wrong", True)
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "books.py").write_text("def book(context):\n    return 'x'")
    monkeypatch.setattr("worker.cli.checks.models.list_service_models", lambda *_: frozenset({"m2"}))
    (found,) = check_models(
        Settings(root=tmp_path, models={"m": "shelf.books:book:m1"}, openai_url="http://127.0.0.1:9")
    )
    assert (found.state, found.fix) == ("wrong", "correct HELIX_MODELS: m=shelf.books:book:MODEL")
