"""The life of an agent's process: opened for a session, asked one message after the other, closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from api_client.contract.settings import Settings
from worker.runners.base import Emit, Order, RunResult, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long, and how many, idle processes are kept; ``seconds`` 0: none. ``memory_mb`` 0: any amount.

    ``spares``: how many of each kind are started ahead for new sessions, at most.
    """

    seconds: float = 0.0
    processes: int = 16
    per_owner: int = 2
    memory_mb: int = 1024
    spares: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits of an installation."""
        return cls(
            seconds=settings.claude_warm_seconds,
            processes=settings.claude_warm_processes,
            per_owner=settings.claude_warm_per_owner,
            memory_mb=settings.claude_warm_mb,
            spares=settings.claude_spares,
        )


class LivingAgent(Protocol):
    """One agent's process between its first message and its end. Used by one message at a time."""

    @property
    def session(self) -> tuple[str, str]:
        """Whose it is, owner and session: never another's."""
        ...

    @property
    def fixed(self) -> str:
        """What cannot change while it lives."""
        ...

    @property
    def keepable(self) -> bool:
        """Return whether its last message was complete beyond doubt, and nothing of that goes on."""
        ...

    def continues(self, order: Order) -> bool:
        """Return whether it lives, and holds exactly the conversation that the order goes on from. May block."""
        ...

    async def ask(self, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        """One message, to the end; None where it was surely never taken, and another process is to be asked."""
        ...

    def rest(self, until: float) -> None:
        """Nothing is asked now: the guard ends it at ``until`` by ``time.monotonic()``."""
        ...

    def memory(self) -> int:
        """Return what it alone holds, in bytes: what its end gives back. May block."""
        ...

    def close(self) -> None:
        """End it, and remove what it leaves; returns when it is gone. Twice does no harm."""
        ...


@runtime_checkable
class Opens(Protocol):
    """A runner whose process may live on."""

    async def run_alone(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """As ``AsyncRunner.run_async``, in a process that ends with the run."""
        ...

    def fixed_part(self, order: Order) -> str:
        """Return all of an order that a process is started with, as one text; empty: it runs alone. May block."""
        ...

    def open(self, order: Order, fixed: str, stop: Stop) -> LivingAgent | RunResult:
        """Start a process for an order's session; the result that says why not. May block."""
        ...


class Spare(LivingAgent, Protocol):
    """A process that was started ahead. Until it is claimed its ``session`` has no owner, and it knows of nobody."""

    def claim(self, order: Order, fixed: str) -> bool:
        """Become the process of an order's session; False: it cannot, and is to be closed. May block."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A runner that can start a process before it is known for which session."""

    def spare_part(self, order: Order) -> str:
        """Return what an order has in common with all whose spare it may take, as one text; empty: none. May block."""
        ...

    def kinds(self, since: float) -> list[tuple[float, Order]]:
        """Return orders without an owner, one of each kind of which some worker wanted a spare after ``since``.

        Each with when, in seconds since the epoch. May block.
        """
        ...

    def open_spare(self, order: Order, part: str, until: float) -> Spare | None:
        """Start one for orders like this one, but without an owner; its guard ends it at ``until``. None: it cannot be.

        May block.
        """
        ...
