"""Interfaces of an agent process that answers several messages of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from api_client.contract.settings import Settings
from worker.runners.base import Emit, Order, RunResult, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmLimits:
    """Limits on idle agent processes; ``seconds`` 0 keeps none.

    ``memory_mb`` 0 means unlimited; ``spares`` counts per kind.
    """

    seconds: float = 0.0
    processes: int = 16
    per_owner: int = 2
    memory_mb: int = 1024
    spares: int = 0

    @classmethod
    def from_settings(cls, settings: Settings) -> WarmLimits:
        """Read the limits from the settings."""
        return cls(
            seconds=settings.claude_warm_seconds,
            processes=settings.claude_warm_processes,
            per_owner=settings.claude_warm_per_owner,
            memory_mb=settings.claude_warm_mb,
            spares=settings.claude_spares,
        )


class LivingAgent(Protocol):
    """An agent process that answers one message after the other."""

    @property
    def session(self) -> tuple[str, str]:
        """Owner and session of the process, which never change."""
        ...

    @property
    def fixed_part(self) -> str:
        """The part of an order that cannot change while the process lives."""
        ...

    @property
    def can_be_kept(self) -> bool:
        """Return whether the last message ended completely, with no work left in the background."""
        ...

    def continues(self, order: Order) -> bool:
        """Return whether the process is alive and holds exactly the order's conversation. May block."""
        ...

    async def answer_message(self, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        """Answer one message; None if the process certainly never read the message."""
        ...

    def mark_idle(self, until: float) -> None:
        """Mark the process idle; the guard kills an idle process at ``until``, by ``time.monotonic()``."""
        ...

    def measure_memory(self) -> int:
        """Return the bytes that ending the process would free. May block."""
        ...

    def close(self) -> None:
        """End the process, remove its files, and wait until it is gone. Idempotent."""
        ...


@runtime_checkable
class WarmRunner(Protocol):
    """A runner whose agent process can answer several messages."""

    async def run_alone(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run an order in a process that ends with the run."""
        ...

    def fixed_part(self, order: Order) -> str:
        """Return the part of an order that is fixed at process start; empty if no process can be kept. May block."""
        ...

    def open_agent(self, order: Order, fixed: str, stop: Stop) -> LivingAgent | RunResult:
        """Start a process for the order's session, or return a result that explains the failure. May block."""
        ...


class SpareAgent(LivingAgent, Protocol):
    """A spare agent process, started before its session is known."""

    def bind_session(self, order: Order, fixed: str) -> bool:
        """Assign the process to the order's session; False if the process must be closed instead. May block."""
        ...


@runtime_checkable
class SpareRunner(Protocol):
    """A runner that can start agent processes before their session is known."""

    def spare_part(self, order: Order) -> str:
        """Return the part of an order that a spare process must share with the order. May block."""
        ...

    def wanted_kinds(self, since: float) -> list[tuple[float, Order]]:
        """List the kinds of spare processes wanted after ``since``: an example order, and the time of the request.

        Times are seconds since the epoch. May block.
        """
        ...

    def open_spare(self, order: Order, part: str, until: float) -> SpareAgent | None:
        """Start a spare process for orders like this one, or return None. May block.

        The guard kills the process at ``until``.
        """
        ...
