"""Sessions: their unfinished turns, and the position of a waiting turn."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.keys import keys_for_turn
from api_client.contract.tasks import RUN_QUEUE
from api_client.store import Store
from api_client.store.commands import find_queue, load_queue_script, release_keys
from api_client.turns.reader import _QUEUE_POSITION
from api_client.workers.reports import count_messages


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The position of a waiting turn in its queue.

    ``before`` counts earlier unfinished turns of its session. If there are none, ``waiting`` is about how many turns
    start until this one does, itself included.
    """

    before: int
    waiting: int


class Sessions:
    """Reads which turns of a session are unfinished. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._place = load_queue_script(_QUEUE_POSITION, store.settings)

    async def find_position(self, turn_id: str, session_id: str) -> QueuePlace:
        """Return a turn's position in its session or, if it is next there, among all turns that wait for an agent."""
        found = await self._store.await_reply(self._store.redis.lpos(self._session_key(turn_id, session_id), turn_id))
        if found:
            return QueuePlace(int(found), 0)
        lengths = await self._store.await_reply(count_messages(self._store))
        keys = keys_for_turn(self._store.namespace, turn_id)
        place = await self._store.send_command("HGET", keys.turn(turn_id), "place") or b""
        queue_keys = release_keys(keys, find_queue(self._store.settings))
        lined_up = 1 + int(await self._store.run_script(self._place, queue_keys, [place]))
        return QueuePlace(0, lengths[RUN_QUEUE] + lined_up)

    async def list_unfinished(self, turn_id: str, session_id: str) -> list[str]:
        """Return the ids of a session's unfinished turns in order. ``turn_id`` may be any turn of the session."""
        found = await self._store.await_reply(self._store.redis.lrange(self._session_key(turn_id, session_id), 0, -1))
        return [each.decode() for each in found]

    async def has_unfinished(self, session_id: str) -> bool:
        return bool(await self._store.await_reply(self._store.redis.llen(self._store.keys.session(session_id))))

    async def close_agent(self, session_id: str) -> str:
        """Ask a worker to stop the session's idle agent. Return the worker's name, or an empty string."""
        key = self._store.keys.affinity(session_id)
        found: bytes | None = await self._store.await_reply(self._store.redis.getdel(key))
        return (found or b"").decode()

    def _session_key(self, turn_id: str, session_id: str) -> str:
        return keys_for_turn(self._store.namespace, turn_id).session(session_id)


def session_files_key(store: Store) -> str:
    """Return the key of the Redis hash that records where the files of each session are stored."""
    return store.keys.files
