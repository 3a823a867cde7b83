"""Cancels turns in any state."""

from __future__ import annotations

from api_client.broker.announcer import Announcer
from api_client.contract.turn import Turn, TurnState
from api_client.store import Store
from api_client.store.commands import CANCEL
from api_client.store.module_log import ModuleLog
from api_client.turns.fair_queue import FairQueue
from api_client.turns.reader import TurnReader

log = ModuleLog(__name__)


class Canceller:
    """Cancels turns on request, so that the session's next turn can start."""

    def __init__(self, store: Store, reader: TurnReader, announcer: Announcer) -> None:
        self._store = store
        self._reader = reader
        self._line = FairQueue(store, announcer)
        self._cancel = store.load_command(CANCEL)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """Cancel a turn in any state and return its record. A finished turn is left unchanged.

        Raises ``TurnNotFound`` if the turn does not exist or has another owner.
        """
        turn = await self._reader.read_turn(turn_id, owner=owner)
        if turn.state is not TurnState.FINISHED:
            session_id = turn.request.session_id
            said, head = await self._store.run_command(
                self._cancel, turn_id, session_id, {"owner": turn.request.owner, "reason": "cancelled"}
            )
            log.info("turn.cancel_asked", turn_id=turn_id, state=said.decode())
            if head:
                await self._line.queue_turn(head.decode(), session_id, turn.created_at)
        return await self._reader.read_turn(turn_id, owner=owner)
