"""Calling turns off, in whatever state they are."""

from __future__ import annotations

from api_client.broker.announcer import Announcer
from api_client.contract.keys import keys_of
from api_client.contract.tasks import Link
from api_client.contract.turn import Turn, TurnState
from api_client.store import Store
from api_client.store.commands import CANCEL
from api_client.store.module_log import ModuleLog
from api_client.turns.reader import TurnReader

log = ModuleLog(__name__)


class Canceller:
    """Calls turns off, and rings for the turn that leads the session then."""

    def __init__(self, store: Store, reader: TurnReader, announcer: Announcer) -> None:
        self._store = store
        self._reader = reader
        self._announcer = announcer
        self._cancel = store.command(CANCEL)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """Call the turn off, whatever it is doing; returns its record. Idempotent; a finished turn stays as it is.

        Raises:
            TurnNotFound: no such turn, or not this owner's. StoreUnavailable: the store does not answer.
        """
        turn = await self._reader.get(turn_id, owner=owner)
        if turn.state is not TurnState.FINISHED:
            session_id = turn.request.session_id
            said, head = await self._store.change(
                self._cancel, turn_id, session_id, {"owner": turn.request.owner, "reason": "cancelled"}
            )
            log.info("turn.cancel_asked", turn_id=turn_id, state=said.decode())
            if head:
                await self._announce_next(head.decode(), session_id)
        return await self._reader.get(turn_id, owner=owner)

    async def _announce_next(self, turn_id: str, session_id: str) -> None:
        """Announce the turn that leads its session now."""
        key = keys_of(self._store.namespace, turn_id).turn(turn_id)
        if link := await self._store.ask(self._store.redis.hget(key, "next")):
            await self._announcer.announce(Link.parse(link.decode()), turn_id, session_id, preferred=True)
