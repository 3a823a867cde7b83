"""A real agent as a client of ``turns run mcp``: its model's tool call is a turn, and the answer its result."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from tests.agents.running import program_of, with_node
from tests.agents.stub import Services, StubReply, calls, said_in, says
from tests.installation import Installation, environ_of
from tests.mcp.tasks import SCRIPT, server, turns_of

pytestmark = pytest.mark.long


#: How opencode names our tool.
TOOL = "turns_submit_turn"


def settings(url: str, face: Any) -> dict[str, Any]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "sk-stub"},
        "models": {"m1": {"name": "m1", "limit": {"context": 200000, "output": 32000}}},
    }
    turns = {"type": "local", "command": [face.command, *face.args], "environment": face.env, "enabled": True}
    return {
        "autoupdate": False,
        "enabled_providers": ["helix"],
        "model": "helix/m1",
        "small_model": "helix/m1",
        "provider": {"helix": provider},
        "mcp": {"turns": turns},
    }


class Asking(Services):
    """Calls our tool once, where it is offered."""

    def take(self, request: dict[str, Any]) -> StubReply:
        offered = TOOL in json.dumps(request.get("tools") or [])
        if offered and not any(each.get("role") == "tool" for each in said_in(request)):
            return calls(TOOL, message="hello")
        return self.replies[0]


def test_opencode_submits_a_turn_as_a_tool(installation: Installation, tmp_path: Path) -> None:
    program = program_of("opencode")
    if not os.environ.get("AGENTS") or program is None:
        pytest.skip("real agents run with `make e2e-agents`")
    installation.play(SCRIPT)
    relay, _ = installation.relay(), installation.worker()
    face = server(relay.url, environ_of(installation.settings))
    with Asking([says("It says so.")]) as service:
        file = tmp_path / ".config" / "opencode" / "opencode.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings(service.url, face)))
        environ = {"PATH": with_node(), "HOME": str(tmp_path), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        ended = subprocess.run(
            [program, "run", "ask"], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=170,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        results = [each for asked in service.requests for each in said_in(asked) if each.get("role") == "tool"]
    assert "It says so." in ended.stdout
    assert "Answered." in json.dumps(results)
    assert "completed" in json.dumps(results)
    assert turns_of(installation) == 1
