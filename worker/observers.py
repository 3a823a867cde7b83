"""Passes finished turns to observers, at least once, with a cursor in the store."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from api_client.contract.errors import TurnNotFound
from api_client.contract.events import Event
from api_client.contract.plugins import OBSERVER, UnusablePlugin, find_plugins, load_plugin
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.store import Store
from api_client.store.connection import SingleConnection
from api_client.turns.finished_turns import FinishedTurns
from api_client.turns.reader import TurnReader

log = structlog.get_logger()

#: Seconds between polls, and until another process takes over from a dead one.
_LOOK_SECONDS, _TAKE_OVER_SECONDS = 1.0, 15
_BATCH = 50


class Observer(Protocol):
    """Interface for plug-ins that process finished turns. Created without arguments, once per worker process."""

    def observe(self, turn: Turn, events: Sequence[Event]) -> None:
        """Process a finished turn and the complete list of its events. May block: it runs in a thread.

        The turn is passed again if this method raises or the process dies.
        """


class ObserverFeed:
    """Passes finished turns to all installed observers, from the time of their installation on."""

    def __init__(self, settings: Settings, connection: SingleConnection) -> None:
        self._store = Store(settings, connection)
        self._reader = TurnReader(self._store)
        self._observers = _load_observers()
        self.name, self.seconds = "observers", _LOOK_SECONDS if self._observers else 0.0
        self._me = f"{socket.gethostname()}-{os.getpid()}"

    async def poll(self) -> None:
        """Pass the turns that have finished since the last poll to each observer."""
        for name, observer in self._observers.items():
            turns = FinishedTurns(self._store, f"observer:{name}")
            await turns.start_reading()
            while await self._acquire_role(name) and (batch := await turns.next_batch(_BATCH)):
                for turn_id in batch.turn_ids:
                    with suppress(TurnNotFound):  # the turn's retention has ended
                        turn = await self._reader.read_turn(turn_id)
                        await asyncio.to_thread(observer.observe, turn, await self._reader.read_events(turn_id))
                await turns.confirm_batch(batch)

    async def leave(self) -> None:
        """Do nothing when this process stops, because another process continues from the stored position."""

    async def _acquire_role(self, name: str) -> bool:
        key, redis, ask = f"{self._store.keys.prefix}observing:{name}", self._store.redis, self._store.await_reply
        if await ask(redis.set(key, self._me, nx=True, ex=_TAKE_OVER_SECONDS)):
            return True
        held = await ask(redis.get(key)) == self._me.encode()
        return held and bool(await ask(redis.expire(key, _TAKE_OVER_SECONDS)))


def _load_observers() -> Mapping[str, Observer]:
    found = dict[str, Observer]()
    for name in find_plugins(OBSERVER):
        try:
            found[name] = load_plugin(OBSERVER, name)()
        except UnusablePlugin as error:
            log.error("observer.not_loaded", observer=name, error=str(error))
    return found
