"""Agents that this process keeps, and the store's record of who keeps whose: they are made to agree.

Whoever runs a message of a session makes the agents worthless that others keep of it: they hold another conversation.
"""

from __future__ import annotations

import time

from api_client.contract.settings import Settings
from api_client.store.store import Connection
from api_client.turns.record.ledger import Ledger
from worker.agents.ability import never_works
from worker.agents.registry import build_runner
from worker.runners.warm.idle_agents import IdleAgents
from worker.runners.warm.life import Opens

_LOOK_SECONDS = 2.0
#: The record of an agent is written when its message has ended: within this time, in seconds.
_TO_NOTE = 2.0


def keeps_agents(settings: Settings) -> bool:
    """True if agents of some model may wait in a worker process for the next message of their session."""
    if not settings.claude_warm_seconds:
        return False
    works = [spec for model, spec in settings.models.items() if not never_works(settings, model)]
    return any(isinstance(build_runner(spec)[0], Opens) for spec in works)


class KeptAgents:
    """Looks after the agents of this process, in the second loop. While none is kept, the store is not asked."""

    def __init__(self, settings: Settings, worker: str, agents: IdleAgents) -> None:
        self.name = "kept agents"
        self.seconds = _LOOK_SECONDS if settings.claude_warm_seconds else 0.0
        self._agents, self._worker = agents, worker
        self._ledger = Ledger(settings, worker, Connection(settings, answer_seconds=2.0))

    async def poll(self) -> None:
        """Forget the records of agents that are here no more; end those whose record is another's, or gone.

        Raises:
            RedisError: the store does not answer.
        """
        for _, session_id in self._agents.ended():
            await self._ledger.keep_no_more(session_id)
        known_before = time.monotonic() - _TO_NOTE
        for session in [session for session, since in self._agents.resting().items() if since < known_before]:
            if await self._ledger.keeper(session[1]) != self._worker:
                self._agents.end(session)

    async def leave(self) -> None:
        """Forget them all."""
        for _, session_id in self._agents.ended() | self._agents.resting().keys():
            await self._ledger.keep_no_more(session_id)
