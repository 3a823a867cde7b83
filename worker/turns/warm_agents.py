"""Keeps the store's record of idle agents and the idle agents of this process consistent."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from api_client.contract.settings import Settings
from api_client.store.connection import SingleConnection
from api_client.turns.record.ledger import Ledger
from worker.agents.model_availability import find_permanent_obstacle
from worker.agents.runner_lookup import build_runner
from worker.runners.base import Runner
from worker.runners.warm import idle_agents
from worker.runners.warm.agent_lifecycle import SpareRunner, WarmLimits, WarmRunner

_LOOK_SECONDS = 2.0
#: Time after a run within which the agent is recorded, in seconds.
_TO_NOTE = 2.0


def can_keep_agents(settings: Settings) -> bool:
    """Return True if any model's agents may stay running between messages, to answer the next message faster."""
    return any(isinstance(runner, WarmRunner) for runner in _list_runners(settings))


def _list_runners(settings: Settings) -> list[Runner]:
    if not settings.claude_warm_seconds:
        return []
    works = {spec for model, spec in settings.models.items() if not find_permanent_obstacle(settings, model)}
    return list({runner.name: runner for runner, _ in map(build_runner, works)}.values())


class WarmAgents:
    """Keeps the store's records of this process's idle agents up to date."""

    def __init__(
        self,
        settings: Settings,
        worker: str,
        takes: Callable[[], bool] = lambda: True,
        connection: SingleConnection | None = None,
    ) -> None:
        self.name = "kept agents"
        self.seconds = _LOOK_SECONDS if settings.claude_warm_seconds else 0.0
        self._agents, self._worker, self._takes = idle_agents.shared_idle_agents(), worker, takes
        self.seen, self.end_all, self.close = self._agents.describe_idle, self._agents.end_all, self._agents.close
        self._settings, self._limits = settings, WarmLimits.from_settings(settings)
        self._ledger = Ledger(settings, worker, connection or SingleConnection(settings))

    @cached_property
    def _preparing_runners(self) -> list[SpareRunner]:
        return [runner for runner in _list_runners(self._settings) if isinstance(runner, SpareRunner)]

    async def poll(self) -> None:
        """Delete the store's records of exited agents, and stop agents whose session has moved to another worker."""
        for runner in self._preparing_runners if self._takes() else ():
            self._agents.foresee_spares(runner, self._limits)
        for _, session_id in self._agents.pop_ended_sessions():
            await self._ledger.clear_affinity(session_id)
        known_before = time.monotonic() - _TO_NOTE
        for session in [session for session, since in self._agents.idle_sessions().items() if since < known_before]:
            if await self._ledger.find_affinity(session[1]) != self._worker:
                self._agents.end_agent(session)

    async def leave(self) -> None:
        """Delete the store's records of all idle agents of this process."""
        for _, session_id in self._agents.pop_ended_sessions() | self._agents.idle_sessions().keys():
            await self._ledger.clear_affinity(session_id)
