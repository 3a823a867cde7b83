"""Real agents of others with tools of the gateway: they find them, call them, and get the result."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from api_client.contract.turn import Outcome
from tests.agents.running import RUNNERS, program_of, with_node
from tests.agents.stub import Services, StubReply, calls, said_in, says
from tests.installation import Installation
from tests.tools.running import HERE, PYTHON, block, counting, equip, reported, rows, told

pytestmark = pytest.mark.long

#: How each agent names our tool; Codex has it in a namespace.
TOOLS = {
    "codex": "mcp__helix/counter__write",
    "opencode": "helix_counter__write",
    "kimi": "mcp__helix__counter_write",
    "qwen": "mcp__helix__counter__write",
}

#: Tools of ``hostile_server.py``, each as bad as its name, and what the call log says about its call.
SITUATIONS = {
    "error": "done",
    "refuse": "failed",
    "malformed": "done",
    "input": "done",
    "elicit": "done",
    "garbage": "done",
    "slow": "done",
    "die": "unknown",
    "change": "done",
    "big": "done",
    "hang": "unknown",
}


class Counting(Services):
    """Calls our tool once, where it is offered."""

    ours = ""

    def take(self, request: dict[str, Any]) -> StubReply:
        offered = self.ours.rpartition("/")[2] in json.dumps(request.get("tools") or [])
        if offered and "line 1" not in json.dumps(said_in(request)):
            return calls(self.ours, note="a")
        return self.replies[0]


@pytest.fixture(params=TOOLS)
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def program(agent: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of the agent, where real agents run and it is installed."""
    found = program_of(agent)
    if not os.environ.get("AGENTS") or found is None:
        pytest.skip("real agents run with `make e2e-agents`")
    monkeypatch.setenv("PATH", with_node())
    return found


async def test_a_real_agent_uses_the_counting_server(agent: str, program: Path, installation: Installation) -> None:
    with Counting([says("Done.\n\n<!-- STEP: done -->")]) as service:
        service.ours = TOOLS[agent]
        used = {"models": {"m": RUNNERS[agent]}, "agent_path": str(program), "openai_url": f"{service.url}/v1"}
        counts = equip(installation, counting(installation.settings.root, writes="allow"), **used, openai_api_key="sk")
        installation.worker()
        turn = await installation.answer("count", model="m", validators=())
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert counts.read_text() == "a\n"
    assert [(row["tool"], row["state"]) for row in rows(installation, turn.turn_id)] == [("write", "done")]
    assert await reported(installation, turn.turn_id) == ["counter counter.write"], "shown once"


class Misbehaving(Services):
    """Calls one tool of the hostile server after the other, where they are offered."""

    ours = ""
    left: list[str]

    def take(self, request: dict[str, Any]) -> StubReply:
        if "slow" not in json.dumps(request.get("tools") or []) or not self.left:
            return self.replies[0]
        return calls(self.ours.replace("counter", "h").replace("write", self.left.pop(0)))


async def test_a_real_agent_goes_on_after_each_way_in_which_a_server_misbehaves(
    agent: str, program: Path, installation: Installation
) -> None:
    with Misbehaving([says("Done.\n\n<!-- STEP: done -->")]) as service:
        service.ours, service.left = TOOLS[agent], list(SITUATIONS)
        used = {"models": {"m": RUNNERS[agent]}, "agent_path": str(program), "openai_url": f"{service.url}/v1"}
        command = [PYTHON, str(HERE / "hostile_server.py"), str(installation.settings.root / "made")]
        server = block("h", command=command, writes="allow", timeout_seconds=3, max_result_bytes=2**22)
        equip(installation, server, **used, openai_api_key="sk")
        installation.worker()
        turn = await installation.answer("call", model="m", validators=())
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert (installation.settings.root / "made").read_text().split() == list(SITUATIONS), "each call was made once"
    assert {row["tool"]: row["state"] for row in rows(installation, turn.turn_id)} == SITUATIONS
