"""Running a real agent through our runner, against the stub of its service: what the tests of all agents share."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from api_client.contract.settings import Settings
from tests.agents.stub import Services
from tests.claude.running import VERSION, cli
from tests.runs import Asked, Ran, ordered, ran
from worker.agents.runner_lookup import build_runner
from worker.runners.base import AgentEvent, Order
from worker.runners.sandbox.guard_client import AgentProcesses

_TOOLS = Path(__file__).parents[2] / ".helix-tools" / "agents"

#: Agent -> its version, as `make agents` installs it, and the model's runner. Gemini is second tier.
VERSIONS = {"codex": "0.169.0", "opencode": "1.18.33", "qwen": "0.24.4", "kimi": "2.1.0", "gemini": "0.61.0"}
VERSIONS |= {"claude": VERSION}
RUNNERS = {"codex": "codex:m1"} | {name: f"acp:{name}:m1" for name in VERSIONS if name not in {"claude", "codex"}}


def program_of(agent: str) -> Path | None:
    """The installed program of an agent; None where it is not installed here."""
    if agent == "claude":
        return cli()
    path = _TOOLS / f"{agent}-{VERSIONS[agent]}" / "node_modules" / ".bin" / agent
    return path if path.exists() else None


def node() -> Path | None:
    """The folder of the Node that is new enough for all agents; None where it is not installed here."""
    found = next(iter(sorted(_TOOLS.glob("node-*/node_modules/node*/**/bin/node"))), None)
    return found.parent if found else None


@dataclass
class Agent:
    """Runs agents as a worker would, in a session below ``root``. ``runner`` is as in ``HELIX_MODELS``.

    ``runs`` counts them.
    """

    root: Path
    runner: str
    agents: AgentProcesses
    stub: Services | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    runs: int = 0

    @property
    def workdir(self) -> Path:
        return self.root / "projects" / "sessions" / "s"

    def run(
        self,
        prompt: str = "Hallo",
        *,
        when: Callable[[AgentEvent, Order], object] | None = None,
        stop: Asked | None = None,
        **values: Any,
    ) -> Ran:
        """One run. ``when`` hears every event as it comes."""
        self.runs += 1
        built, option = build_runner(self.runner)
        turn = f"turn-{self.root.parent.name}-{self.root.name}"
        limits = {"deadline": time.monotonic() + 120, "idle_seconds": 60.0, "option": option}
        order = ordered(self.workdir, turn, self.runs, prompt, **(limits | values))
        made: Any = cast("Any", type(built))(agents=self.agents, settings=self.effective, **_module_of(built))
        found = ran(made, order, when, stop)
        assert not (self.workdir / "agent" / order.directory.name).exists(), "the run's HOME is left"
        return found

    @property
    def effective(self) -> Settings:
        """The settings its runs are under."""
        given: dict[str, Any] = {"sandbox": "off"}
        if self.stub:
            given |= {"openai_url": f"{self.stub.url}/v1", "openai_api_key": "sk-stub"}
        return Settings(root=self.root, **(given | self.settings))


def _module_of(runner: object) -> dict[str, str]:
    module = getattr(runner, "_module", "")
    return {"module": module} if module else {}


def with_node() -> str:
    """A PATH on which the Node for agents comes first."""
    return os.pathsep.join(filter(None, (str(node() or ""), os.environ.get("PATH", ""))))
