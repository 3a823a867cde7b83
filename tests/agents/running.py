"""Running a real agent through our runner, against the stub of its service: what the tests of all agents share."""

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from api_client.contract.settings import Settings
from tests.agents.stub import Services
from tests.support import processes_with
from worker.agents.registry import build_runner
from worker.runners.base import AgentEvent, Order, RunResult
from worker.runners.guard.processes import Processes

_TOOLS = Path(__file__).parents[2] / ".helix-tools" / "agents"

#: Agent -> its version, as `make agents` installs it, and the model's runner. Gemini is second tier.
VERSIONS = {"codex": "0.169.0", "opencode": "1.18.33", "qwen": "0.24.4", "kimi": "2.1.0", "gemini": "0.61.0"}
RUNNERS = {"codex": "codex:m1"} | {name: f"acp:{name}:m1" for name in VERSIONS if name != "codex"}


def program_of(agent: str) -> Path | None:
    """The installed program of an agent; None where it is not installed here."""
    path = _TOOLS / f"{agent}-{VERSIONS[agent]}" / "node_modules" / ".bin" / agent
    return path if path.exists() else None


def node() -> Path | None:
    """The folder of the Node that is new enough for all agents; None where it is not installed here."""
    found = next(iter(sorted(_TOOLS.glob("node-*/node_modules/node*/**/bin/node"))), None)
    return found.parent if found else None


@dataclass
class Asked:
    """A stop request that a test sets."""

    reason: str = ""
    lease_ends: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run and what could be seen of it."""

    result: RunResult
    order: Order
    events: list[AgentEvent]

    @property
    def verdict(self) -> str:
        kind = self.result.completion.kind
        return kind.value if kind else self.result.completion.verdict.value

    @property
    def reason(self) -> str:
        return self.result.completion.reason

    @property
    def evidence(self) -> dict[str, Any]:
        return self.result.completion.evidence

    @property
    def shown(self) -> str:
        """What a reader of the events sees at the end."""
        text = ""
        for event in self.events:
            text = "" if event.kind == "reset" else text + (event.text if event.kind == "output" else "")
        return text


@dataclass
class Agent:
    """Runs agents as a worker would, in a session below ``root``. ``runner`` is as in ``HELIX_MODELS``."""

    root: Path
    runner: str
    agents: Processes
    stub: Services | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    _runs: int = 0

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
        self._runs += 1
        runner, option = build_runner(self.runner)
        turn = f"t0-{self.root.parent.name}-{self.root.name}"
        directory = self.workdir / "attempts" / f"{turn}-{self._runs}"
        (directory / "output").mkdir(parents=True)
        defaults: dict[str, Any] = {
            "turn_id": turn,
            "session_id": "s",
            "attempt": 1,
            "delivery": self._runs,
            "prompt": prompt,
            "messages": ({"role": "user", "content": prompt},),
            "workdir": self.workdir,
            "directory": directory,
            "deadline": time.monotonic() + 120,
            "idle_seconds": 60.0,
            "locale": "de",
            "option": option,
        }
        order = Order(**(defaults | values))
        events: list[AgentEvent] = []

        def emit(event: AgentEvent) -> None:
            events.append(event)
            if when:
                when(event, order)

        made: Any = cast("Any", type(runner))(agents=self.agents, settings=self.effective, **_module_of(runner))
        result = asyncio.run(made.run_async(order, emit, stop or Asked()))
        assert processes_with(f"HELIX_AGENT_MARK={order.mark}") == {}, "a process of the run is left"
        assert not (self.workdir / "agent" / directory.name).exists(), "the run's HOME is left"
        return Ran(result=result, order=order, events=events)

    @property
    def effective(self) -> Settings:
        """The settings its runs are under."""
        given: dict[str, Any] = {"box": "off"}
        if self.stub:
            given |= {"openai_url": f"{self.stub.url}/v1", "openai_api_key": "sk-stub"}
        return Settings(root=self.root, **(given | self.settings))


def _module_of(runner: object) -> dict[str, str]:
    module = getattr(runner, "_module", "")
    return {"module": module} if module else {}


def with_node() -> str:
    """A PATH on which the Node for agents comes first."""
    return os.pathsep.join(filter(None, (str(node() or ""), os.environ.get("PATH", ""))))
