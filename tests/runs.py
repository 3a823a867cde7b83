"""Runs an agent once as a worker would, and records what could be seen, for the tests of all agents."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import processes_with
from worker.runners.base import AgentEvent, AsyncRunner, Order, RunResult
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.launch import Hear, Launch, start_agent
from worker.runners.sandbox.supervision import RunEnding


@dataclass
class Asked:
    """A stop request that a test sets."""

    reason: str = ""
    lease_ends: float = math.inf


def ended(agents: AgentProcesses, launch: Launch, order: Order, take_line: Hear = lambda _: ()) -> RunEnding:
    """Run an agent to its end in this thread, and return the ending."""
    with contextlib.ExitStack() as held:
        begun = start_agent(agents, launch, order, Asked(), lambda _: None, take_line, held)
        return begun if isinstance(begun, RunEnding) else begun.build_ending(begun.supervision.watch_agent())


class _Judged:
    """An order with a result, as ``Ran`` needs it."""

    result: RunResult

    @property
    def reason(self) -> str:
        return self.result.completion.reason

    @property
    def evidence(self) -> dict[str, Any]:
        return self.result.completion.evidence


@dataclass
class Played(_Judged):
    """How a run ended, what its readers received, and what the action log has."""

    result: RunResult
    events: list[AgentEvent] = field(default_factory=list)
    seconds: float = 0.0
    action_log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.result.completion.verdict.value


@dataclass(frozen=True, kw_only=True)
class Ran(_Judged):
    """One run and everything that could be seen of it.

    ``hooks`` are the Claude CLI's hooks that ran; SessionEnd writes ADR-036's ``.done``.
    """

    result: RunResult
    order: Order
    events: list[AgentEvent]
    seconds: float
    hooks: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        kind = self.result.completion.kind
        return kind.value if kind else self.result.completion.verdict.value

    @property
    def shown(self) -> str:
        """Return what a reader of the events sees at the end."""
        text = ""
        for event in self.events:
            text = "" if event.kind == "reset" else text + (event.text if event.kind == "output" else "")
        return text


def ordered(workdir: Path, turn: str, number: int, prompt: str, **values: Any) -> Order:
    """Return the order for run ``number`` of a turn, in a session's folder; ``values`` override defaults."""
    directory = workdir / "attempts" / f"{turn}-{number}"
    (directory / "output").mkdir(parents=True)
    ours: dict[str, Any] = {"session_id": workdir.name, "delivery": number, "directory": directory, "locale": "de"}
    return order_in(workdir, turn, prompt, **(ours | values))


def order_in(folder: Path, turn: str, prompt: str = "Hallo", **values: Any) -> Order:
    """Return the order for a turn's first run in a folder of its own; ``values`` override defaults."""
    ours: dict[str, Any] = {
        "turn_id": turn,
        "session_id": "s",
        "attempt": 1,
        "delivery": 1,
        "prompt": prompt,
        "messages": ({"role": "user", "content": prompt},),
        "workdir": folder,
        "directory": folder,
        "deadline": time.monotonic() + 60,
    }
    return Order(**(ours | values))


def ran(
    runner: AsyncRunner,
    order: Order,
    when: Callable[[AgentEvent, Order], object] | None,
    stop: Asked | None,
    *,
    keeps: Callable[[], object] = bool,
) -> Ran:
    """Carry an order out and return the run; ``when`` gets every event. Unless ``keeps``, no process is left."""
    events: list[AgentEvent] = []

    def emit(event: AgentEvent) -> None:
        events.append(event)
        if when:
            when(event, order)

    started = time.monotonic()
    result = asyncio.run(runner.run_async(order, emit, stop or Asked()))
    seconds = time.monotonic() - started
    assert keeps() or processes_with(f"HELIX_AGENT_MARK={order.process_tag}") == {}, "a process of the run is left"
    return Ran(result=result, order=order, events=events, seconds=seconds)
