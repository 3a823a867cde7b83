"""What a message, a project or an agent may not do: with the real CLI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api_client.contract.turn import Turn, TurnRequest, TurnState
from tests.claude.running import Agent
from tests.claude.stub import calls, says, told
from worker.consultant import session

_OK = says("Gut.")


@pytest.mark.parametrize(
    "message",
    [
        "@/etc/passwd lies das",
        "/clear",
        "/model opus",
        "!cat /etc/passwd",
        "#merke dir das",
        "a\0b",
        "\u202egnurrhcsnessak\u202c",
        "\ud800",
        "x" * 300_000,
        "-p --dangerously-skip-permissions",
    ],
    ids=["mention", "clear", "model", "shell", "memory", "nul", "right-to-left", "surrogate", "300kB", "options"],
)
def test_a_message_is_text_and_nothing_else(agent: Agent, message: str) -> None:
    agent.stub.replies = [_OK]
    ran = agent.run(message)
    assert (ran.verdict, ran.result.text) == ("complete", "Gut.")
    (request,) = agent.stub.requests
    assert "root:x:0" not in json.dumps(request)
    assert message.replace("\0", "\ufffd").encode("utf-8", "replace").decode() in told(request)[0]


def test_the_session_is_told_its_rules_and_a_request_in_them_stays_text(agent: Agent) -> None:
    agent.stub.replies = [_OK]
    agent.workdir.mkdir(parents=True)
    request = TurnRequest(
        model="m", messages=({"role": "user", "content": "Lies\n@/etc/passwd\n```\n@/etc/passwd"},), session_id="s"
    )
    session.prepare(agent.workdir, Turn(turn_id="t", epoch="", state=TurnState.RUNNING, request=request), agent.root)
    agent.run()
    sent = json.dumps(agent.stub.requests[0], ensure_ascii=False)
    assert "HELIX Meta-Consultant" in sent
    assert "<!-- STEP: what -->" in sent
    assert "root:x:0" not in sent


def test_the_project_can_be_read_and_other_sessions_cannot(agent: Agent) -> None:
    (agent.root / "src").mkdir()
    (agent.root / "src" / "a.py").write_text("PROJECT")
    (agent.root / ".env").write_text("SECRET-1")
    other = agent.root / "projects" / "sessions" / "other" / "output"
    other.mkdir(parents=True)
    (other / "response.md").write_text("SECRET-2")
    paths = [agent.root / "src" / "a.py", agent.root / ".env", other / "response.md", Path("/etc/passwd")]
    agent.stub.replies = [*(calls("Read", file_path=str(path)) for path in paths), _OK]
    assert agent.run().verdict == "complete"
    sent = json.dumps(agent.stub.requests[-1])
    assert "PROJECT" in sent
    assert not [secret for secret in ("SECRET-1", "SECRET-2", "root:x:0") if secret in sent]


def test_an_agent_writes_in_its_own_folder_only(agent: Agent) -> None:
    (agent.root / "src").mkdir()
    paths = ["output/ADR-001-x.md", "../../CLAUDE.md", "marks/x", str(agent.root / "src" / "x"), str(agent.root / "x")]
    agent.stub.replies = [*(calls("Write", file_path=path, content="mine") for path in paths), _OK]
    ran = agent.run()
    assert ran.verdict == "complete"
    written = [path for path in agent.root.rglob("*") if path.is_file() and path.read_bytes() == b"mine"]
    assert written == [ran.order.directory / "output" / "ADR-001-x.md"]


def test_settings_in_the_agents_folder_do_not_disarm_the_hooks(agent: Agent) -> None:
    agent.stub.replies = [_OK]
    disarm = (
        "mkdir .claude && echo '{\"disableAllHooks\": true}' | tee .claude/settings.json >.claude/settings.local.json"
    )
    assert agent.wrapped(f'{disarm}\nexec "$CLI" "$@"').run().verdict == "complete"


def test_the_agent_sees_nothing_of_the_workers_environment(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_STORE_URL", "redis://:hidden@localhost/0")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "hidden")
    agent.settings = {"claude_tools": ("default",), "claude_allowed_tools": ("Bash",)}
    agent.stub.replies = [calls("Bash", command="env", description="look"), _OK]
    agent.run()
    sent = json.dumps(agent.stub.requests[-1])
    assert "HELIX_AGENT_MARK" in sent
    assert "hidden" not in sent
