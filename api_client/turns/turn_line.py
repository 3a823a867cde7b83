"""The fair queue of turns that never ran, for submitting and cancelling."""

from __future__ import annotations

from api_client.broker import Stamp, announcement
from api_client.broker.announcer import Announcer
from api_client.contract.keys import keys_of
from api_client.contract.tasks import Link
from api_client.store import Store
from api_client.store.commands import LINE_UP, RELEASE, ReleaseReply, line_script, queue_in, release_keys


class TurnLine:
    """Starts waiting turns so that owners take turns. Each method may raise ``StoreUnavailable``."""

    def __init__(self, store: Store, announcer: Announcer) -> None:
        self._store = store
        self._announcer = announcer
        self._line_up = store.command(LINE_UP)
        self._release = line_script(RELEASE, store.settings)

    async def up(self, turn_id: str, session_id: str, since: float = 0.0) -> None:
        """Put a session's next turn into the fair queue. Turns that ran before are left to the recovery of due turns.

        ``since`` is the creation time of the preceding turn in seconds since the epoch, from which the session has
        waited.
        """
        key = keys_of(self._store.namespace, turn_id).turn(turn_id)
        if not (link := await self._store.ask(self._store.redis.hget(key, "next"))):
            return
        values: dict[str, str | bytes | int] = {"message": "", "channel": "", "event": "", "since": int(since * 1000)}
        if self._store.has_queues:
            made = announcement(self._store.settings, Link.parse(link.decode()), turn_id, session_id, Stamp())
            values |= {"message": made.message, "channel": made.channel, "event": made.event}
        await self._store.change(self._line_up, turn_id, session_id, values)
        if not self._store.has_queues:
            await self.release()

    async def release(self) -> None:
        """Announce the turns that may leave the fair queue now, so that workers start them."""
        keys = release_keys(self._store.keys, queue_in(self._store.settings))
        found = ReleaseReply.read(await self._store.run(self._release, keys, [""]))
        for link, each, session_id in found.left:
            await self._announcer.announce(link, each, session_id)
