"""The real Claude CLI as a client of ``turns run mcp``: its model's tool call is a turn, and the answer its result."""

import json
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from tests.claude.stub import Stub, calls, says
from tests.installation import Installation, environ_of
from tests.mcp.tasks import SCRIPT, server, turns_of

pytestmark = pytest.mark.long


def test_the_cli_submits_a_turn_as_a_tool(
    installation: Installation, program: Path, stub: Stub, tmp_path: Path
) -> None:
    installation.play(SCRIPT)
    relay, _ = installation.relay(), installation.worker()
    face = server(relay.url, environ_of(installation.settings))
    config = {"mcpServers": {"turns": {"command": face.command, "args": face.args, "env": face.env}}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    stub.replies = [calls("mcp__turns__submit_turn", message="hello"), says("It says so.")]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ANTHROPIC_BASE_URL": stub.url}
    ended = subprocess.run(
        [program, "-p", "ask", "--mcp-config", tmp_path / "mcp.json", "--strict-mcp-config",
         "--allowedTools", "mcp__turns__submit_turn", "--output-format", "json"],
        env={**environ, "ANTHROPIC_API_KEY": "sk-stub"}, cwd=tmp_path, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.dumps(stub.requests[-1]["messages"][-1])
    assert "Answered." in result
    assert "completed" in result
    assert turns_of(installation) == 1
