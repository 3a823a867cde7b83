"""An installation whose agent makes tool calls, and whose MCP server counts."""

import json
import sys
from pathlib import Path
from typing import Any

from api_client.contract.event_kinds import AttemptTool
from api_client.contract.turn import Turn
from tests.installation import Installation
from tests.support import processes_with

HERE = Path(__file__).parent
PYTHON = sys.executable


def toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def block(name: str, **values: Any) -> str:
    """Return the block of a server in the settings file."""
    return "\n".join([f"[tools.{name}]", *(f"{key} = {toml(value)}" for key, value in values.items())]) + "\n"


def equip(installation: Installation, *blocks: str, **changes: Any) -> Path:
    """Give the installation these servers and an agent that calls them. Return the counting server's file."""
    root = installation.settings.root
    (root / "tools.toml").write_text("\n".join(blocks))
    agent = f"program: {PYTHON}\narguments: [{HERE / 'calling_agent.py'}]\ncomplete: {{exit_codes: [0]}}\n"
    (root / "agent.yaml").write_text(agent)
    changes = {"models": {"m": "command:agent.yaml"}, "sandbox": "off", "config": str(root / "tools.toml"), **changes}
    installation.change(**changes)
    return root / "counts"


def counting(root: Path, name: str = "counter", **values: Any) -> str:
    """Return the block of the counting server, as a process of its own."""
    command = [PYTHON, str(HERE / "counting_server.py"), str(root / "counts")]
    return block(name, command=command, **values)


async def call(installation: Installation, *calls: tuple[str, dict[str, Any]], **more: Any) -> str:
    """Submit a turn that makes these calls, and return its id."""
    return await installation.ask(json.dumps([list(each) for each in calls]), model="m", validators=(), **more)


def rows(installation: Installation, turn_id: str) -> list[dict[str, Any]]:
    """Return the rows of a turn's call log."""
    found: Any = installation.store.hgetall(f"{installation.keys.turn(turn_id)}:tool_calls")
    return [json.loads(text) for _, text in sorted(found.items())]


async def reported(installation: Installation, turn_id: str) -> list[str]:
    """Return the tool calls that a turn's events show, each with its server or the agent's own name."""
    events = [event.body for event in await installation.client.reader.read_events(turn_id)]
    return [f"{body.server} {body.name}".strip() for body in events if isinstance(body, AttemptTool)]


def gateways(installation: Installation) -> list[int]:
    """Return the ids of the installation's gateway processes."""
    found = processes_with(f"HELIX_NAMESPACE={installation.settings.namespace}")
    return [pid for pid, command in found.items() if "gateway_process" in command]


def told(installation: Installation, turn: Turn) -> str:
    """Return what to read when a turn went wrong."""
    log = installation.workers[-1].log_file.read_text()[-5_000:]
    return f"{turn}\n{installation.run('turn', 'attempts', turn.turn_id, '--full').stdout}\n{log}"
