"""The fair queue of turns that have not run yet."""

from __future__ import annotations

from api_client.broker.announcer import Announcer
from api_client.broker.celery_message import build_enqueue_arguments
from api_client.contract.keys import keys_for_turn
from api_client.contract.tasks import ChainTask
from api_client.store import Store
from api_client.store.commands import ENQUEUE, RELEASE, ReleaseReply, find_queue, load_queue_script, release_keys


class FairQueue:
    """Queues turns that have not run yet, so that all owners get their share. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, announcer: Announcer) -> None:
        self._store = store
        self._announcer = announcer
        self._enqueue = store.load_command(ENQUEUE)
        self._release = load_queue_script(RELEASE, store.settings)

    async def queue_turn(self, turn_id: str, session_id: str, since: float = 0.0) -> None:
        """Put a session's next turn into the fair queue. Skip a turn that needs no worker, such as a finished one.

        The session has waited since ``since``, the creation time of the turn before (seconds since the epoch).
        """
        key = keys_for_turn(self._store.namespace, turn_id).turn(turn_id)
        if not (chain_task := await self._store.await_reply(self._store.redis.hget(key, "next"))):
            return
        task = ChainTask.parse(chain_task.decode())
        values = build_enqueue_arguments(self._store.settings, task, turn_id, session_id, since)
        await self._store.run_command(self._enqueue, turn_id, session_id, values)
        if not self._store.has_queues:
            await self.release_turns()

    async def release_turns(self) -> None:
        """Announce the turns that may leave the fair queue now, so that workers can start them."""
        keys = release_keys(self._store.keys, find_queue(self._store.settings))
        found = ReleaseReply.parse_reply(await self._store.run_script(self._release, keys, [""]))
        for chain_task, each, session_id in found.left:
            await self._announcer.announce_task(chain_task, each, session_id)
