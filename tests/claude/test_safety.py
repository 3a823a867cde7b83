"""What a message, a project or an agent may not do: with the real CLI."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from api_client.contract.session_paths import read_shipped_template
from api_client.contract.turn import Turn, TurnRequest, TurnState
from tests.claude.running import Agent
from tests.claude.stub import Reply, calls, says, told
from worker.files import session
from worker.files.session_fence import open_fenced

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


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_the_model_hears_nothing_of_what_else_the_repository_around_its_session_holds(agent: Agent) -> None:
    agent.stub.replies = [_OK]
    sessions = agent.root / "projects" / "sessions"
    sessions.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=sessions, check=True)
    (sessions / "session-of-another").mkdir()
    (sessions / "session-of-another" / "salaries.md").write_text("x")
    assert agent.run().verdict == "complete"
    assert "session-of-another" not in json.dumps(agent.stub.requests)
    assert "gitStatus" not in json.dumps(agent.stub.requests)


def test_the_session_is_told_its_rules_and_a_request_in_them_stays_text(agent: Agent) -> None:
    agent.stub.replies = [_OK]
    agent.workdir.mkdir(parents=True)
    request = TurnRequest(
        model="m", messages=({"role": "user", "content": "Lies\n@/etc/passwd\n```\n@/etc/passwd"},), session_id="s"
    )
    with open_fenced(agent.workdir) as holder:
        session.prepare_session(
            holder,
            Turn(turn_id="t", epoch="", state=TurnState.RUNNING, request=request),
            agent.root,
            read_shipped_template("de"),
        )
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


def test_a_root_with_a_strange_name_has_the_same_rules(agent: Agent) -> None:
    agent.root = agent.root / "a [b] *c? (d) !e"
    (agent.root / "src").mkdir(parents=True)
    (agent.root / "src" / "a.py").write_text("PROJECT")
    forged = calls("Write", file_path="marks/x", content="mine")
    agent.stub.replies = [calls("Read", file_path=str(agent.root / "src" / "a.py")), forged, _OK]
    ran = agent.run()
    assert "PROJECT" in json.dumps(agent.stub.requests[-1])
    assert not (ran.order.directory / "marks" / "x").exists()


def ways_out(root: Path, other: Path) -> list[Reply]:
    """What an agent may try with the tools it has, and with those it has not."""
    home = {"file_path": "/proc/self/environ"}
    reads = [other, root / ".env", root / ".helix" / "run.json", "/etc/shadow", "/proc/1/environ", "../../../other/x",
             root / "link" / "x", "link/x", "~/helix-settings.json", "/root/.bashrc", "/var/log"]  # fmt: skip
    writes = ["/etc/cron.d/x", root / "adr" / "x.md", root / ".git" / "hooks" / "pre-commit", "../x/output/x.md",
              "../../status.json", "../../output/.done", "marks/SessionEnd2", "/tmp/way-out", "link/y"]  # fmt: skip
    return [
        calls("Read", **home),
        *(calls("Read", file_path=str(path)) for path in reads),
        *(calls("Write", file_path=str(path), content="WAY-OUT") for path in writes),
        calls("Edit", file_path=str(root / "src.py"), old_string="PROJECT", new_string="WAY-OUT"),
        calls("Glob", pattern="**/*", path=str(root / "projects")),
        calls("Grep", pattern="SECRET", path=str(root), output_mode="content"),
        calls("Grep", pattern="SECRET", path=str(other.parent), output_mode="content"),
        calls("Grep", pattern="root:", path="/etc", output_mode="content"),
        calls("Bash", command="echo WAY-OUT >/tmp/way-out", description="x"),
        calls("WebFetch", url="http://127.0.0.1:9/", prompt="x"),
        calls("Task", description="x", prompt="x", subagent_type="general-purpose"),
        calls("Skill", skill="update-config"),
    ]


def test_no_way_out_of_thirty_is_open(agent: Agent) -> None:
    root = agent.root
    other = root / "projects" / "sessions" / "other" / "x"
    for path in (other, root / ".env", root / ".helix" / "run.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("SECRET")
    for folder in ("adr", ".git/hooks"):
        (root / folder).mkdir(parents=True)
    (root / "src.py").write_text("PROJECT")
    (root / "link").symlink_to(other.parent)
    tried = ways_out(root, other)
    agent.settings = {"claude_api_key": "sk-SECRET"}
    agent.stub.replies = [*tried, _OK]
    ran = agent.wrapped(f'ln -s "{other.parent}" link\nexec "$CLI" "$@"').run()
    assert (ran.verdict, len(agent.stub.requests)) == ("complete", len(tried) + 1)
    results = [
        json.dumps(block["content"])
        for message in agent.stub.requests[-1]["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert len(results) == len(tried)
    assert not [text for text in results if "SECRET" in text or "root:" in text]
    assert not [path for path in root.rglob("*") if path.is_file() and "WAY-OUT" in path.read_text(errors="replace")
                and "agent" not in path.parts]  # fmt: skip
    assert not Path("/tmp/way-out").exists()


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


def test_the_agent_is_given_what_the_installation_names(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "passed-on")
    agent.settings = {"claude_api_key": "", "claude_env": ("ANTHROPIC_AUTH_TOKEN", "NOT_THERE")}
    agent.stub.replies = [_OK]
    assert agent.run().verdict == "complete"
    assert agent.stub.headers[-1]["authorization"] == "Bearer passed-on"
