"""Postpones turns whose messages still wait in a queue, so that repeated announcements do not pile up."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.store.connecting import open_store
from api_client.store.module_log import ModuleLog
from api_client.turns.record.announcements import FIELDS, AnnouncedTurn, QueueHead, find_announcement, next_check_at

log = ModuleLog(__name__)

_LUA = Path(__file__).with_name("lua") / "postpone.lua"


class Backlog:
    """Compares due turns with the messages in Celery's queues, to find turns whose messages are still queued."""

    def __init__(self, settings: Settings, store: Redis) -> None:
        self._settings = settings
        self._store = store
        self._keys = Keys(settings.namespace)
        self._broker = store
        if settings.broker_url != settings.store_url:
            broker = replace(settings, store_url=settings.broker_url)
            self._broker = open_store(broker)
        self._announce_ms = int(settings.announce_seconds * 1000)
        self._script = store.register_script(_LUA.read_text(encoding="utf-8"))

    async def is_empty(self) -> bool:
        """Return True if the store has neither unfinished turns nor pending counters. Raises ``RedisError``."""
        return not await self._store.exists(self._keys.due, self._keys.pending)

    async def list_due(self, now: int, limit: int) -> list[tuple[str, float]]:
        """Return the ids and due times of up to ``limit`` due turns, longest waiting first. Raises ``RedisError``.

        Times are milliseconds of the store's clock.
        """
        found: list[Any] = await self._store.zrangebyscore(self._keys.due, "-inf", now, 0, limit, withscores=True)
        return [(turn_id.decode(), score) for turn_id, score in found]

    async def postpone_waiting(self, due: Sequence[tuple[str, float]], now: int) -> set[str]:
        """Postpone due turns whose messages are still queued. Return the ids of the other turns.

        Raises ``RedisError`` if the store does not answer.
        """
        others = {turn_id for turn_id, _ in due}
        turns = [turn for turn in await self._read_announced(due) if turn]
        if not turns:
            return others
        try:
            heads = await self._read_heads({turn.queue for turn in turns})
        except RedisError as error:
            log.info("backlog.broker_away", error=type(error).__name__)
            return others
        names = [self._keys.due]
        words: list[Any] = []
        for turn in turns:
            later = next_check_at(turn, heads[turn.queue], now, self._announce_ms)
            if later is not None:
                names.append(self._keys.turn(turn.turn_id))
                words += [turn.turn_id, turn.score, later, turn.at]
                others.discard(turn.turn_id)
        if words:
            await self._script(keys=names, args=words)
        return others

    async def _read_announced(self, due: Iterable[tuple[str, float]]) -> list[AnnouncedTurn | None]:
        asked = list(due)
        pipe = self._store.pipeline(transaction=False)
        for turn_id, _ in asked:
            pipe.hmget(self._keys.turn(turn_id), FIELDS)
        found = await pipe.execute(raise_on_error=False)
        return [self._parse_record(turn_id, score, each) for (turn_id, score), each in zip(asked, found, strict=True)]

    def _parse_record(self, turn_id: str, score: float, found: Any) -> AnnouncedTurn | None:
        if isinstance(found, RedisError):
            return None  # the reaper logs damaged records
        record = {name: value.decode("utf-8", "replace") for name, value in zip(FIELDS, found, strict=True) if value}
        try:
            return find_announcement(turn_id, score, record, self._announce_ms)
        except ValueError:
            return None

    async def _read_heads(self, queues: Iterable[str]) -> dict[str, QueueHead | None]:
        prefix, names = f"{self._settings.namespace}:celery:", sorted(queues)
        pipe = self._broker.pipeline(transaction=False)
        for name in names:
            pipe.lindex(prefix + name, -1)
        return {name: await self._parse_head(raw) for name, raw in zip(names, await pipe.execute(), strict=True)}

    async def _parse_head(self, raw: bytes | None) -> QueueHead | None:
        if raw is None:
            return None
        turn_id = _parse_turn_id(raw)
        score: Any = await self._store.zscore(self._keys.due, turn_id)
        [turn] = await self._read_announced([(turn_id, score)]) if score is not None else [None]
        return QueueHead(turn.at if turn else None)


def _parse_turn_id(raw: bytes) -> str:
    try:
        _, kwargs, _ = json.loads(base64.b64decode(json.loads(raw)["body"]))
        return str(kwargs["turn_id"])
    except (ValueError, KeyError, TypeError):
        return ""
