"""Codex's hook before each tool call, as Codex runs it: exit code 2 blocks the call, 0 does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from worker.plugins.codex import runner

HOOK = Path(runner.__file__).with_name("blocking_hook.py")
ASK = {"tool": "Bash", "arguments": {"command": "git push*"}, "do": "ask"}
PUSH = {"tool_name": "Bash", "tool_input": {"command": "git push"}}


@pytest.fixture
def orders(tmp_path: Path) -> dict[str, Any]:
    named = {name: str(tmp_path / name) for name in ("question", "seen")}
    folder = tmp_path / "run"
    folder.mkdir()
    given = {"rules": [ASK], "root": str(tmp_path), "folder": str(folder), "asks": True, "denied": "Nobody may."}
    return given | named | {"unasked": "Nobody may.", "later": "Later.", "said": "", "approval_server": None}


def hooked(orders: dict[str, Any], call: object) -> tuple[int, str]:
    """The exit code and what the agent hears."""
    file = Path(orders["root"], "orders.json")
    file.write_text(json.dumps(orders))
    argv = [sys.executable, "-S", "-P", str(HOOK), str(file)]
    done = subprocess.run(argv, input=json.dumps(call), capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def asked(orders: dict[str, Any]) -> Any:
    path = Path(orders["question"])
    return json.loads(path.read_text()) if path.exists() else None


def test_a_call_that_no_rule_names_is_left_to_its_sandbox(orders: dict[str, Any]) -> None:
    assert hooked(orders, {"tool_name": "Bash", "tool_input": {"command": "ls"}}) == (0, "")
    assert Path(orders["seen"]).exists()
    assert asked(orders) is None


def test_the_first_call_that_a_person_is_asked_about_is_the_question_and_all_others_are_blocked(
    orders: dict[str, Any],
) -> None:
    assert hooked(orders, PUSH)[0] == 2
    later = {"tool_name": "Bash", "tool_input": {"command": "git push --force"}}
    assert [hooked(orders, call)[0] for call in (later, {**later, "tool_input": {"command": "ls"}})] == [2, 2]
    assert asked(orders) == {"tool": "Bash", "arguments": {"command": "git push"}}


@pytest.mark.parametrize("call", [{**PUSH, "agent_id": "helper"}, PUSH], ids=["a helper", "nobody to ask"])
def test_where_nobody_can_be_asked_the_call_is_denied(orders: dict[str, Any], call: dict[str, Any]) -> None:
    given = orders if "agent_id" in call else orders | {"asks": False}
    assert hooked(given, call) == (2, "Nobody may.")
    assert asked(orders) is None


@pytest.mark.parametrize(
    "what", ["Add File: adr/1.md", "Delete File: adr/1.md", "Update File: x\n*** Move to: adr/1.md"]
)
def test_the_folder_of_a_rule_holds_for_every_path_of_a_patch(orders: dict[str, Any], what: str) -> None:
    patch = f"*** Begin Patch\n*** {what}\n+x\n*** End Patch\n"
    given = orders | {"rules": [{"tool": "apply_patch", "folder": "run/adr/*", "do": "deny"}]}
    call = {"tool_name": "apply_patch", "tool_input": {"command": patch}}
    assert hooked(given, call) == (2, "Nobody may.")
    assert hooked(given, {**call, "tool_input": {"command": patch.replace("adr/", "other/")}}) == (0, "")


@pytest.mark.parametrize("call", [[], {}, {"tool_name": "Bash", "tool_input": 1}])
def test_a_call_that_cannot_be_read_does_not_run(orders: dict[str, Any], call: object) -> None:
    code, said = hooked(orders, call)
    assert (code, "could not be checked" in said) == (2, True)


def test_without_orders_no_call_runs(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-P", str(HOOK), str(tmp_path / "none")]
    assert subprocess.run(argv, input="{}", capture_output=True, text=True, check=False).returncode == 2
