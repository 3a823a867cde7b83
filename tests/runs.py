"""One run of an agent as a worker would order it, and what could be seen of it: what the tests of all agents share."""

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
from worker.runners.sandbox.launch import Hear, Launch, start_agent
from worker.runners.sandbox.processes import AgentProcesses
from worker.runners.sandbox.supervision import RunEnding


@dataclass
class Asked:
    """A stop request that a test sets."""

    reason: str = ""
    lease_ends: float = math.inf


def ended(agents: AgentProcesses, launch: Launch, order: Order, take_line: Hear = lambda _: ()) -> RunEnding:
    """Run what is launched to the end, in this thread, with nobody who hears of it."""
    with contextlib.ExitStack() as held:
        begun = start_agent(agents, launch, order, Asked(), lambda _: None, take_line, held)
        return begun if isinstance(begun, RunEnding) else begun.build_ending(begun.supervision.watch_agent())


class _Judged:
    """A run that has a result."""

    result: RunResult

    @property
    def reason(self) -> str:
        return self.result.completion.reason

    @property
    def evidence(self) -> dict[str, Any]:
        return self.result.completion.evidence


@dataclass
class Played(_Judged):
    """How a run ended, what its readers heard, and what the witness wrote of it."""

    result: RunResult
    events: list[AgentEvent] = field(default_factory=list)
    seconds: float = 0.0
    witness: list[dict[str, Any]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.result.completion.verdict.value


@dataclass(frozen=True, kw_only=True)
class Ran(_Judged):
    """One run and what could be seen of it.

    ``hooks``: those of the Claude CLI that ran, whoever's they are; SessionEnd is what writes ADR-036's ``.done``.
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
        """What a reader of the events sees at the end."""
        text = ""
        for event in self.events:
            text = "" if event.kind == "reset" else text + (event.text if event.kind == "output" else "")
        return text


def ordered(workdir: Path, turn: str, number: int, prompt: str, **values: Any) -> Order:
    """The order of a turn's run of this number, in a session's folder; ``values`` go before ours."""
    directory = workdir / "attempts" / f"{turn}-{number}"
    (directory / "output").mkdir(parents=True)
    ours: dict[str, Any] = {"session_id": workdir.name, "delivery": number, "directory": directory, "locale": "de"}
    return order_in(workdir, turn, prompt, **(ours | values))


def order_in(folder: Path, turn: str, prompt: str = "Hallo", **values: Any) -> Order:
    """An order of a turn's first run in a folder, which is its own too; ``values`` go before ours."""
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
    """Carry an order out. ``when`` hears every event as it comes. If it ``keeps`` none, no process may be left."""
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
