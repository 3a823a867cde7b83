"""The real CLI in a sandbox: it works, goes on, and a shell in it gets at nothing but its own folder."""

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.claude.endings import SLOW
from tests.claude.running import Agent, at_first_output
from tests.claude.stub import Stub, calls, says
from tests.runs import Ran
from tests.support import certificate, processes_with, wait_for
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.process_tags import TAG_VARIABLE, inner_process_id
from worker.runners.warm import idle_agents

SHELL = {"claude_tools": ("default",), "claude_allowed_tools": ("Bash",)}


@pytest.fixture
def sandboxed(agent: Agent) -> Agent:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)
    agent.settings = {"sandbox": "required"}
    return agent


def test_an_answer_comes_out_of_a_box_and_its_conversation_goes_on_in_the_next(sandboxed: Agent) -> None:
    sandboxed.stub.replies = [calls("Write", file_path="output/ADR-1.md", content="x"), says("Gut."), says("Besser.")]
    base = sandboxed.run()
    assert (base.verdict, base.result.text) == ("complete", "Gut.")
    assert (base.evidence["sandbox"], base.evidence["network"]) == ("bubblewrap", "cut")
    assert (base.order.directory / "output" / "ADR-1.md").read_text() == "x"
    again = sandboxed.run("noch einmal", attempt=2, agent_session=base.result.agent_session)
    assert (again.verdict, again.evidence["continued"]) == ("complete", "message")


def test_a_boxed_agent_that_is_killed_or_stopped_is_incomplete_and_leaves_nothing(sandboxed: Agent) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        sandboxed.stub.replies = [SLOW]
        assert sandboxed.run(when=at_first_output(number)).verdict == "incomplete"


def test_a_shell_in_a_box_sees_the_project_and_no_other_session_and_writes_where_it_may(sandboxed: Agent) -> None:
    sandboxed.settings |= SHELL | {"writable": ("adr",)}
    for name in ("adr/ADR-1.md", "src.py", ".env", "projects/sessions/other/status.json"):
        path = sandboxed.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"CONTENT-{path.name}")
    command = (
        f"cd {sandboxed.root}; cat src.py .env projects/sessions/other/status.json; ls -A; "
        "echo way-out | tee src.py ../way-out adr/ADR-2.md; cat ~/helix-settings.json; echo x >~/helix-settings.json; "
        "echo x >~/.claude/settings.json"
    )
    # Hidden from the CLI, which has rules of its own about the commands it can read.
    hidden = f"echo {base64.b64encode(command.encode()).decode()} | base64 -d | sh 2>&1"
    sandboxed.stub.replies = [calls("Bash", command=hidden, description="look"), says("Gut.")]
    assert sandboxed.run().verdict == "complete"
    sent = json.dumps(sandboxed.stub.requests[-1]["messages"][-1])
    assert "CONTENT-src.py" in sent
    assert "CONTENT-.env" not in sent
    assert "CONTENT-status.json" not in sent
    assert "helix-settings.json: Read-only file system" in sent
    assert "/.claude/settings.json: Read-only file system" in sent
    assert (sandboxed.root / "src.py").read_text() == "CONTENT-src.py"
    assert (sandboxed.root / "adr" / "ADR-2.md").read_text() == "way-out\n"


def test_the_key_is_at_the_door_and_not_in_the_box_and_nothing_else_is_reached(sandboxed: Agent) -> None:
    sandboxed.settings |= SHELL | {"claude_api_key": "sk-ant-api03-REAL"}
    port = sandboxed.stub.url.rpartition(":")[2]
    command = f"env; (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>&1; grep -c : /proc/net/dev"
    hidden = f"echo {base64.b64encode(command.encode()).decode()} | base64 -d | bash 2>&1"
    sandboxed.stub.replies = [calls("Bash", command=hidden, description="look"), says("Gut.")]
    assert sandboxed.run().verdict == "complete"
    seen = json.dumps(sandboxed.stub.requests[-1]["messages"][-1])
    assert "REAL" not in seen
    assert "ANTHROPIC_BASE_URL=http://127.0.0.1:" in seen
    assert "Connection refused" in seen
    assert {headers["x-api-key"] for headers in sandboxed.stub.headers} == {"sk-ant-api03-REAL"}


@pytest.mark.parametrize("key", ["sk-ant-api03-REAL", "sk-ant-oat01-REAL"])
def test_over_https_the_door_speaks_tls_and_trusts_the_installations_certificates(
    sandboxed: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    own = certificate(tmp_path)
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(own))
    with Stub(certificate=own, replies=[says("Sicher.")]) as stub:
        sandboxed = replace(sandboxed, stub=stub)
        sandboxed.settings |= {"claude_api_key": key, "claude_env": ("NODE_EXTRA_CA_CERTS",)}
        ran = sandboxed.run()
    assert (ran.verdict, ran.result.text) == ("complete", "Sicher.")
    sent = stub.headers[0]
    assert sent.get("x-api-key", sent.get("authorization")) == (key if "api03" in key else f"Bearer {key}")


def test_a_host_that_is_named_is_reached_through_the_door_and_its_neighbours_are_not(sandboxed: Agent) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with Stub() as named, Stub() as other:
        sandboxed.settings |= SHELL | {"sandbox_hosts": (named.url.removeprefix("http://"),)}
        tries = "; ".join(f"curl -sS -p -I --noproxy x -m 9 {each.url}/ 2>&1 | head -3" for each in (named, other))
        hidden = f"echo {base64.b64encode(tries.encode()).decode()} | base64 -d | http_proxy=$HTTPS_PROXY bash 2>&1"
        sandboxed.stub.replies = [calls("Bash", command=hidden, description="look"), says("Gut.")]
        assert sandboxed.run().verdict == "complete"
    seen = json.dumps(sandboxed.stub.requests[-1]["messages"][-1])
    assert "200 OK" in seen
    assert "403" in seen


def test_where_no_box_can_be_made_and_one_is_required_no_agent_runs(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.settings = {"sandbox": "required"}
    monkeypatch.setattr(bubblewrap, "find_obstacle", lambda: "there is none")
    monkeypatch.setattr(bubblewrap, "find_network_obstacle", lambda: "there is none")
    ran = agent.run()
    assert (ran.verdict, agent.stub.requests) == ("config", [])
    assert "HELIX_SANDBOX=required, but there is none" in ran.reason


def test_a_writable_folder_can_be_written_without_a_box_too(agent: Agent) -> None:
    agent.settings = {"writable": ("adr",)}
    (agent.root / "adr").mkdir()
    tries = [calls("Write", file_path=str(agent.root / name), content="x") for name in ("adr/ADR-1.md", "b.md")]
    agent.stub.replies = [*tries, says("Gut.")]
    assert agent.run().evidence["sandbox"] == "none"
    assert [path.name for path in agent.root.rglob("*.md")] == ["ADR-1.md"]


@pytest.fixture
def kept(sandboxed: Agent) -> Iterator[Agent]:
    sandboxed.settings["claude_warm_seconds"] = 60.0
    yield sandboxed
    idle_agents.shared_idle_agents().close()


def ask(agent: Agent, before: Ran | None = None, **more: Any) -> Ran:
    session = before.result.agent_session if before else ""
    return agent.run("Hallo", owner="o", agent_session=session, **more)


def in_its_box(ran: Ran) -> dict[int, int]:
    """The processes of a kept agent, by their numbers in its sandbox."""
    return {inner_process_id(pid): pid for pid in processes_with(f"{TAG_VARIABLE}={ran.evidence['run']}")}


def test_a_kept_agent_stays_in_its_box_and_reads_and_writes_there_what_each_message_may(kept: Agent) -> None:
    for name in ("src.py", "projects/sessions/other/status.json", "projects/sessions/s/attempts/x/secret.md"):
        path = kept.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"CONTENT-{path.name}")
    found, before = [], None
    for letter in ("a", "b", "c"):
        reads = [calls("Read", file_path=str(path)) for path in kept.root.rglob("*") if path.is_file()]
        outside = [
            calls("Write", file_path=str(kept.root / "src.py"), content="out"),
            calls("Write", file_path="/tmp/x", content="out"),
        ]
        kept.stub.replies = [
            *reads,
            *outside,
            calls("Write", file_path=f"output/{letter}.md", content=letter),
            says(letter),
        ]
        before = ask(kept, before)
        assert (before.verdict, before.result.text) == ("complete", letter)
        assert [path.name for path in (before.order.directory / "output").iterdir()] == [f"{letter}.md"]
        assert (before.evidence["sandbox"], before.evidence["network"]) == ("bubblewrap", "cut")
        sent = json.dumps(kept.stub.requests[-1]["messages"])
        assert "CONTENT-src.py" in sent
        assert "CONTENT-status.json" not in sent
        assert "CONTENT-secret.md" not in sent
        found.append((before.evidence["start"], in_its_box(before)))
        assert not Path(f"/proc/{found[-1][1][2]}/root/tmp/x").exists()
    assert [start for start, _ in found] == ["cold", "warm", "warm"]
    assert found[0][1] == found[1][1] == found[2][1]
    assert (kept.root / "src.py").read_text() == "CONTENT-src.py"


@pytest.mark.parametrize("change", ["replaced", "added", "folder replaced"])
def test_a_box_never_shows_what_was_in_a_place_before(kept: Agent, change: str) -> None:
    (kept.root / "src.py").write_text("old")
    kept.stub.replies = [says("Gut.")]
    first = ask(kept)
    if change == "folder replaced":
        shutil.rmtree(kept.workdir / "context", ignore_errors=True)
        (kept.workdir / "context").mkdir()
    else:
        (kept.root / "src.new").write_text("new")
        if change == "replaced":
            (kept.root / "src.new").rename(kept.root / "src.py")
    kept.stub.replies = [calls("Read", file_path=str(kept.root / "src.py")), says("Gut.")]
    second = ask(kept, first)
    assert (second.verdict, second.evidence["start"]) == ("complete", "cold")
    assert not in_its_box(first)
    if change == "replaced":
        assert "new" in json.dumps(kept.stub.requests[-1]["messages"][-1])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_an_agent_that_was_killed_or_stopped_in_its_box_is_replaced(
    kept: Agent, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runners.claude.warm_agent._TO_TAKE", 120.0)  # it is looked at before it is asked
    kept.stub.replies = [says("Gut.")]
    first = ask(kept)
    os.kill(in_its_box(first)[2], number)
    if number != signal.SIGSTOP:
        wait_for(lambda: not in_its_box(first))
    second = ask(kept, first)
    assert (second.verdict, second.evidence["start"]) == ("complete", "cold")
    assert not in_its_box(first)
    third = ask(kept, second, when=at_first_output(signal.SIGKILL))
    assert (third.verdict, third.evidence["start"]) == ("incomplete", "warm")


def test_a_box_in_which_anything_else_runs_is_not_kept(kept: Agent) -> None:
    if shutil.which("nsenter") is None:
        pytest.skip("nsenter is not installed")
    kept.stub.replies = [says("Gut.")]
    first = ask(kept)
    enter = ["nsenter", "-t", str(in_its_box(first)[2]), "-p"]
    with subprocess.Popen([*enter, "env", f"{TAG_VARIABLE}={first.evidence['run']}", "sleep", "60"]) as other:
        wait_for(lambda: len(in_its_box(first)) > 4)
        second = ask(kept, first)
        assert (second.verdict, second.evidence["start"]) == ("complete", "warm")
        assert not in_its_box(first)
        assert not len(idle_agents.shared_idle_agents())
        other.wait(60)


def test_a_box_that_is_required_and_cannot_be_made_any_more_keeps_nobody(
    kept: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.stub.replies = [says("Gut.")]
    first = ask(kept)
    monkeypatch.setattr(bubblewrap, "find_obstacle", lambda: "there is none")
    second = ask(kept, first)
    assert (second.verdict, len(kept.stub.requests)) == ("config", 1)
