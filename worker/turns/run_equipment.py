"""Equipment of agent runs beside their sandbox, such as a tool gateway: a port for plug-ins (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from api_client.contract.completion import Completion, ErrorKind, Verdict
from api_client.contract.interruption import Interruption
from api_client.contract.plugins import EQUIPMENT, UnusablePlugin, find_plugins, make_plugin
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from worker.enforcement.tool_call_log import ToolCallLog
from worker.runners.base import SUSPENDED, AgentEvent, Emit, Order, RunResult
from worker.turns.leases.lease import Lease

log = structlog.get_logger()


class RunControl:
    """Tells a runner when its agent must end: when the lease ends, or a tool gateway suspends or aborts the run.

    Thread-safe. Equipment, such as the tool gateway, puts facts about the run into ``evidence``, and the calls that it
    observed into ``observed``.
    """

    def __init__(self, lease: Lease, emit: Emit) -> None:
        self._lease, self._emit, self._loop = lease, emit, asyncio.get_running_loop()
        self._asked: Interruption | None = None
        self._aborted = ""
        self.evidence: dict[str, Any] = {}
        self.observed: ToolCallLog | None = None

    @property
    def reason(self) -> str:
        """Return why the agent must end, or an empty string while it may continue."""
        return self._lease.reason or (SUSPENDED if self._asked or self._aborted else "")

    @property
    def lease_ends(self) -> float:
        """Return the ``time.monotonic()`` value at which the agent must have ended."""
        return self._lease.lease_ends

    @property
    def in_doubt(self) -> bool:
        """Return True if the worker does not know whether it still holds the turn."""
        return self._lease.in_doubt

    def suspend_run(self, asked: Interruption) -> None:
        """End the agent, and suspend the turn until the question is answered. Only the first question counts."""
        self._asked = self._asked or asked

    def abort_run(self, reason: str) -> None:
        """End the agent because of a temporary error. The attempt is then delivered again."""
        self._aborted = self._aborted or reason

    def report_event(self, event: AgentEvent) -> None:
        self._loop.call_soon_threadsafe(self._emit, event)

    def apply_to(self, result: RunResult) -> RunResult:
        """Return the run's result, extended by the evidence and by the question or error that ended the run."""
        ended = result.completion
        if self.observed and result.tool_calls:
            result = replace(result, tool_calls=result.tool_calls.with_observed(self.observed))
        if self._asked and not self._lease.reason:
            ended = Completion(verdict=Verdict.ASKS, reason=self._asked.reason, evidence=ended.evidence)
            result = replace(result, interruption=self._asked)
        elif self._aborted and not self._lease.reason:
            ended = Completion(
                verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason=self._aborted, evidence=ended.evidence
            )
        return replace(result, completion=replace(ended, evidence={**ended.evidence, **self.evidence}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EquipmentContext:
    """The data and functions of a run that its equipment, such as a tool gateway, may use.

    Attributes:
        token: the lease's fencing token; commands to the store must compare it.
        control: ends the run, and reports about it.
        use_up: records that this run uses up a person's answer, and returns whether it may. Call from a thread.
    """

    turn: Turn
    settings: Settings
    token: str = field(repr=False)
    control: RunControl
    use_up: Callable[[], bool]


class RunEquipment:
    """Base class for plug-ins that equip agent runs, for example with tools."""

    def equip_run(self, order: Order, context: EquipmentContext) -> AbstractAsyncContextManager[Order] | None:
        """Return a context manager that yields the equipped order and exits with the run, or None to change nothing.

        Entering it may raise ``SettingsError`` or ``OSError``, which become the run's result.
        """
        return None


def is_equipment_loaded() -> bool:
    """Return True if ``load_equipment`` has nothing left to import, so that the event loop may call it."""
    return bool(load_equipment.cache_info().currsize)


@functools.cache
def load_equipment() -> tuple[RunEquipment, ...]:
    """Return the run equipment of all installed plug-ins."""
    found = []
    for name in find_plugins(EQUIPMENT):
        try:
            found.append(make_plugin(EQUIPMENT, name))
        except UnusablePlugin as error:
            log.error("equipment.not_loaded", equipment=name, error=str(error)[:200])
    return tuple(found)
