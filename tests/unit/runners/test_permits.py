"""The permit that a yes leaves, its server, and what the hooks make of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.tool_calls import WaitingCall
from tests.approvals.stages import AGENTS, ASKED, DENIED, RUNS, Stage
from tests.runs import order_in
from worker.runners import approval_client
from worker.runners.approval_server import ApprovalServer, build_tool_orders, digest_call
from worker.runners.base import ToolOrders
from worker.runners.claude.hooks import TOOL_HOOK
from worker.runners.file_digests import digest_named_files

RULES = [{"arguments": {"command": "touch *"}}, {"arguments": {"command": "echo *"}, "do": "run"}]
FOLDER = "/srv/root/projects/sessions/s/attempts/turn-a-1-1"


@pytest.fixture(params=AGENTS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    stage = Stage(request.param, tmp_path, RULES)
    yield stage
    stage.close()


def test_a_yes_is_for_the_first_call_once(stage: Stage) -> None:
    assert stage.call("touch a") == ASKED
    stage.answer()
    assert stage.call("touch a") == RUNS
    stage.ended("touch a")
    assert stage.call("echo x") == RUNS
    assert (stage.call("touch a"), stage.used) == (ASKED, 1)


def test_a_yes_that_was_not_used_is_there_in_the_next_delivery(stage: Stage) -> None:
    assert stage.call("touch a") == ASKED
    stage.answer()
    stage.answer(again=True)
    assert stage.call("touch a") == RUNS


def test_a_file_that_did_not_change_voids_nothing(stage: Stage) -> None:
    (stage.folder / "sub").mkdir()
    (stage.folder / "sub" / "x").write_text("x")
    (stage.folder / "marks").mkdir()
    call = "touch sub/x sub . /etc/passwd /tmp /dev/null missing"
    assert stage.call(call) == ASKED
    stage.answer()
    (stage.folder / "marks" / "start").touch()
    assert stage.call(call) == RUNS


def test_a_no_is_heard_as_it_was_said(stage: Stage) -> None:
    assert stage.call("touch a") == ASKED
    stage.answer("reject")
    assert [stage.call("touch a"), stage.call("touch a"), stage.call("echo x")] == [DENIED, DENIED, RUNS]
    assert stage.call("touch b") == ASKED


def test_a_question_put_off_by_a_yes_is_asked_when_it_comes_again(stage: Stage) -> None:
    assert stage.call("touch a") == ASKED
    stage.answer()
    if stage.agent == "acp":  # it waits for its answers, so there is nothing to put off
        assert stage.call("touch b") == ASKED
        return
    assert [stage.call("touch b"), stage.call("touch b")] == [DENIED, ASKED]


def test_a_digest_is_of_the_call_and_the_same_in_each_delivery() -> None:
    one = digest_call("Write", {"file_path": f"{FOLDER}/output/a", "content": "x"}, FOLDER)
    other = FOLDER.replace("1-1", "1-2")
    assert one == digest_call("Write", {"content": "x", "file_path": f"{other}/output/a"}, other)
    assert one != digest_call("Write", {"file_path": f"{FOLDER}/output/a", "content": "y"}, FOLDER)
    assert one != digest_call("Edit", {"file_path": f"{FOLDER}/output/a", "content": "x"}, FOLDER)
    assert one != digest_call("Write", {"file_path": "./output/a", "content": "x"}, FOLDER), "a text is not the folder"


def test_no_file_that_a_call_names_can_hold_up_its_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").write_text("x")
    (tmp_path / "closed").chmod(0)
    found = digest_named_files(
        {"command": f"cat pipe loop closed / /proc/self \\ud800 '{'x' * 9_000}'", "n": 1}, tmp_path
    )
    assert {"pipe", "loop", "closed"} <= found.keys()


def test_a_keeper_goes_with_its_run_and_without_it_nothing_runs(tmp_path: Path) -> None:
    question = WaitingCall(call="c", tool="Bash", arguments={}, digest="d").to_interruption()
    server = ApprovalServer(question, tmp_path, None)
    order = order_in(tmp_path, "turn-1", tools=ToolOrders(rules=(), root=tmp_path, approval_socket=server.path))
    told = build_tool_orders(order, sandboxed=False)["approval_server"]
    assert approval_client.ask_approval_server(told, "Bash", {}, asks=False) == approval_client.GO
    with pytest.raises(PermissionError, match="in the approval server's place"):
        approval_client.ask_approval_server(told | {"peer": 0}, "Bash", {}, asks=False)  # as from a sandbox
    server.close()
    assert not server.path.parent.exists()
    with pytest.raises(OSError, match="No such file"):
        approval_client.ask_approval_server(told, "Bash", {}, asks=False)


@pytest.mark.parametrize(
    ("order", "call"), [("{", "{}"), ("{}", "{}"), ("{}", "no JSON"), ('{"rules": 1}', '{"tool_name": 1}')]
)
def test_whatever_goes_wrong_in_the_hook_blocks_the_call(tmp_path: Path, order: str, call: str) -> None:
    (tmp_path / "order").write_text(order)
    argv = [sys.executable, "-I", "-S", str(TOOL_HOOK), str(tmp_path / "order")]
    assert subprocess.run(argv, input=call, capture_output=True, text=True, check=False).returncode == 2
