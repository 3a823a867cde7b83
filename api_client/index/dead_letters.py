"""Dead letters: turns that repeatedly killed their workers and wait for an operator."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from api_client.contract.errors import TurnNotFinished, TurnNotFound
from api_client.contract.turn import Turn
from api_client.store import Store
from api_client.turns.reader import TurnReader

_DROP = Path(__file__).with_name("lua") / "drop.lua"


class DeadLetters:
    """Lists and drops dead letters: turns that repeatedly killed their workers. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, reader: TurnReader) -> None:
        self._store = store
        self._redis, self._ask = store.redis, store.await_reply
        self._reader = reader
        self._drop = store.load_command(_DROP)

    async def list_all(self) -> list[Turn]:
        """Return all dead letters, oldest first."""
        found: list[Turn] = []
        for turn_id in await self._ask(self._redis.zrange(self._store.keys.dead, 0, -1)):
            with suppress(TurnNotFound):  # dropped meanwhile
                found.append(await self._reader.read_turn(turn_id.decode()))
        return sorted(found, key=lambda turn: turn.finished_at)

    async def drop_letter(self, turn_id: str) -> None:
        """Remove a turn from the dead letters, so that it expires like other finished turns. Idempotent.

        Raises ``TurnNotFinished`` if the turn is not a dead letter, ``TurnNotFound`` if it does not exist.
        """
        turn = await self._reader.read_turn(turn_id)
        [said] = await self._store.run_command(
            self._drop, turn_id, turn.request.session_id, {"owner": turn.request.owner}
        )
        if said == b"alive":
            raise TurnNotFinished(turn_id, "is not a dead letter")
