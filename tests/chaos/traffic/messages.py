"""Faults of the broker's messages and of its memory: lost, doubled and late announcements, forgotten scripts."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio as aioredis
from celery import Celery, chain
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from api_client.broker.celery_message import celery_settings
from api_client.contract.keys import Keys
from api_client.contract.phase_work import PHASE_RUN, PHASE_VERIFY
from api_client.contract.settings import Settings
from api_client.contract.tasks import RESUME, RUN_QUEUE, VALIDATE, ChainTask, build_chain
from tests.chaos import store
from tests.chaos.traffic.plan import PlannedFault

_COPIES = 3
_WAIT_SECONDS = 3.0


class Missed(Exception):
    """The fault found nothing to hit at that moment."""


class Messages:
    """Reaches the broker itself, past the proxy, for as short as it takes: a fault must not need what it breaks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._celery = Celery("nemesis", set_as_current=False)
        self._celery.conf.update(celery_settings(settings))
        self._redis = aioredis.Redis.from_url(
            settings.redis_url,
            socket_timeout=_WAIT_SECONDS + 1,
            socket_connect_timeout=1.0,
            retry=Retry(NoBackoff(), 0),
        )
        self._faults: dict[str, Callable[[float], Awaitable[None]]] = {
            "lose message": self._lose,
            "double message": self._double,
            "late message": self._late,
            "flush scripts": self._flush_scripts,
            "drop connections": self._drop_connections,
        }

    async def carry_out(self, fault: PlannedFault) -> None:
        """Carry out one fault.

        Raises:
            Missed: there was nothing to hit. RedisError, OperationalError: the broker is away.
        """
        await self._faults[fault.kind](fault.pick)

    async def close(self) -> None:
        await store.close(self._redis)

    async def _lose(self, _: float) -> None:
        """Take the next message that comes, as a worker that dies between taking and claiming does."""
        queue = f"{self._settings.namespace}:celery:{RUN_QUEUE}"
        waiting: Any = self._redis.blpop([queue], timeout=_WAIT_SECONDS)
        if not await waiting:
            raise Missed("no message came")

    async def _double(self, pick: float) -> None:
        """Announce a live turn's next link again, several times."""
        turn, link, session = await self._live_turn(pick)
        for _ in range(_COPIES):
            await asyncio.to_thread(self._publish, link, turn, session)

    async def _late(self, pick: float) -> None:
        """Announce a link of a live turn that is not its next: one that was, or is to come."""
        turn, link, session = await self._live_turn(pick)
        stale = [
            ChainTask(VALIDATE, link.attempt),
            ChainTask("turn.run", 1),
            ChainTask("turn.retry", 2),
            ChainTask("turn.fail", 1),
        ]
        stale += [ChainTask(PHASE_RUN, 1), ChainTask(PHASE_VERIFY, link.attempt), ChainTask(RESUME, link.attempt)]
        for other in stale:
            if other != link:
                await asyncio.to_thread(self._publish, other, turn, session)

    async def _live_turn(self, pick: float) -> tuple[str, ChainTask, str]:
        live: list[Any] = await self._redis.zrange(self._keys.due, 0, -1)
        if not live:
            raise Missed("no turn is going on")
        turn = live[int(pick * len(live))].decode()
        read: Any = self._redis.hmget(self._keys.turn(turn), "next", "session_id")
        link, session = await read
        with contextlib.suppress(ValueError, AttributeError):
            return turn, ChainTask.parse(link.decode()), session.decode()
        raise Missed("the turn has ended")

    def _publish(self, link: ChainTask, turn: str, session: str) -> None:
        signatures = [
            self._celery.signature(item["name"], kwargs=item["kwargs"], queue=item["queue"], immutable=True)
            for item in build_chain(link, turn, session)
        ]
        chain(*signatures).apply_async(retry=False)

    async def _flush_scripts(self, _: float) -> None:
        await self._redis.script_flush()

    async def _drop_connections(self, _: float) -> None:
        for kind in ("normal", "pubsub"):
            await self._redis.client_kill_filter(_type=kind, skipme=True)
