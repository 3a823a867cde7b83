"""Passes finished turns to observers, at least once, with a cursor in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from api_client.contract.errors import TurnNotFound
from api_client.contract.events import Event
from api_client.contract.plugins import OBSERVER, UnusablePlugin, find_plugins, make_plugin
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.store import Store
from api_client.store.connection import SingleConnection
from api_client.turns.finished_turns import FinishedTurns
from api_client.turns.reader import TurnReader
from api_client.workers.shared_role import SharedRole

log = structlog.get_logger()

#: Seconds between polls, and until another process takes over from a dead one.
_LOOK_SECONDS, _TAKE_OVER_SECONDS = 1.0, 15.0
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
        prefix = f"{self._store.keys.prefix}observing:"
        self._roles = {name: SharedRole(self._store, prefix + name, _TAKE_OVER_SECONDS) for name in self._observers}

    async def poll(self) -> None:
        """Pass the turns that have finished since the last poll to each observer."""
        for name, observer in self._observers.items():
            await self._poll_observer(name, observer)

    async def _poll_observer(self, name: str, observer: Observer) -> None:
        turns, role = FinishedTurns(self._store, f"observer:{name}"), self._roles[name]
        await turns.start_reading()
        while await role.acquire_role() and (batch := await turns.next_batch(_BATCH)):
            for turn_id in batch.turn_ids:
                if not await role.acquire_role():  # an observer may be slow
                    return
                try:
                    turn, events = await self._reader.read_turn(turn_id), await self._reader.read_events(turn_id)
                except TurnNotFound:  # the turn's retention has ended
                    continue
                try:
                    await asyncio.to_thread(observer.observe, turn, events)
                except Exception:  # the observer gets the turn again; the others get theirs meanwhile
                    log.exception("observer.failed", observer=name, turn_id=turn_id)
                    return
            if not await role.acquire_role():
                return
            await turns.confirm_batch(batch)

    async def leave(self) -> None:
        """Do nothing when this process stops, because another process continues from the stored position."""


def _load_observers() -> Mapping[str, Observer]:
    found = dict[str, Observer]()
    for name in find_plugins(OBSERVER):
        try:
            found[name] = make_plugin(OBSERVER, name)
        except UnusablePlugin as error:
            log.error("observer.not_loaded", observer=name, error=str(error))
    return found
