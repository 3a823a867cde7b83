"""Interfaces of an agent process that answers several messages of a session."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from api_client.contract.settings import Settings
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.runners.warm.usable_memory import usable_memory

#: The idle agents of all worker processes together may hold one part in so many of the memory; those of one process at
#: least so many MiB.
_MEMORY_PARTS, _LEAST_MB = 4, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmLimits:
    """The limits on the agent processes that a worker keeps between messages.

    With ``seconds`` 0, none is kept. With ``memory_mb`` 0, they may hold any amount of memory.
    """

    seconds: float = 0.0
    processes: int = 16
    per_owner: int = 2
    memory_mb: int = 1024
    spares: int = 0

    @classmethod
    def from_settings(cls, settings: Settings) -> WarmLimits:
        return cls(
            seconds=settings.claude_warm_seconds,
            processes=settings.claude_warm_processes,
            per_owner=settings.claude_warm_per_owner,
            memory_mb=settings.claude_warm_mb or _default_memory_mb(),
            spares=settings.claude_spares,
        )


def _default_memory_mb() -> int:
    processes = len(os.sched_getaffinity(0))  # by default one for each CPU
    return max(_LEAST_MB, usable_memory() // 2**20 // _MEMORY_PARTS // processes)


class LivingAgent(Protocol):
    """An agent process that answers several messages of a session one after the other."""

    @property
    def session(self) -> tuple[str, str]:
        """Return the owner and session of the process, which never change."""

    @property
    def launch_key(self) -> str:
        """Return a digest of the options that were fixed when the process started."""

    @property
    def can_be_kept(self) -> bool:
        """Return whether the last message was answered completely and no background work is left."""

    def continues(self, order: Order) -> bool:
        """Return whether the process is alive and knows exactly the conversation that this run continues.

        The call may block.
        """

    async def answer_message(self, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        """Answer this run's message and return the result, or None if the process certainly did not read it."""

    def mark_idle(self, until: float) -> None:
        """Mark the process as idle, so that it is killed at ``until`` (``time.monotonic()``)."""

    def measure_memory(self) -> int:
        """Return how many bytes of memory would become free if the process ended. May block."""

    def close(self) -> None:
        """End the process, remove its files, and wait until it is gone. Further calls do nothing."""


@runtime_checkable
class WarmRunner(Protocol):
    """A runner whose agent processes can answer several messages of a session."""

    async def run_alone(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once in a new process that ends with the run, and return the result."""

    def compute_launch_key(self, order: Order) -> str:
        """Return a digest of the options that are fixed when an agent process starts. May block.

        The digest is empty if no process can be kept.
        """

    def open_agent(self, order: Order, launch_key: str, stop: Stop) -> LivingAgent | RunResult:
        """Start an agent process for this run's session and return it, or return an error result.

        The call may block.
        """


class SpareAgent(LivingAgent, Protocol):
    """An agent process that was started in advance, before its session is known."""

    def bind_session(self, order: Order, launch_key: str) -> bool:
        """Assign the process to the run's session. Return False if the process must be closed instead.

        The call may block.
        """


@runtime_checkable
class SpareRunner(Protocol):
    """A runner that can start agent processes in advance, before their session is known."""

    def compute_spare_key(self, order: Order) -> str:
        """Return a digest of the options that a spare process and the run must have in common. May block."""

    def list_wanted_spares(self, since: float) -> list[tuple[float, Order]]:
        """Return the kinds of spare process requested after ``since``: the time of the request, and a sample run.

        The sample is the order of a run that could use the process. Times are seconds since the epoch. May block.
        """

    def open_spare(self, order: Order, part: str, until: float) -> SpareAgent | None:
        """Start a spare process for runs like ``order`` and return it, or None if that is impossible. May block.

        The guard kills the process at ``until``.
        """
