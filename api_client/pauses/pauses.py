"""Setting, ending and reading pauses. They are in the store, so all hosts obey them, and need nobody to be there.

Each shard has them all; a breaker belongs to the shard whose turns opened it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from api_client.contract.keys import Keys
from api_client.pauses.pause import BREAKER, WHATS, Pause, check_pause, check_place, read_pauses
from api_client.store import Store
from api_client.store.audit import Audit
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

_CHANGE = Path(__file__).with_name("change.lua")


class Pauses:
    """The pauses of an installation. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store = store
        self._audit = audit
        self._change = store.redis.register_script(_CHANGE.read_text())

    async def pause(self, pause: Pause, *, seconds: float = 0.0) -> Pause:
        """Pause something from now on, for ``seconds``, or until ``pause.until``, or until somebody resumes it.

        Agents at work finish. Again: the new reason and end count. Returns the pause as it is stored.

        Raises:
            BadRequest: what cannot be paused; names the field.
        """
        now = await self._now()
        pause = replace(pause, since=now, until=now + seconds if seconds else pause.until)
        check_pause(pause, self._store.settings, now)
        await self._audit.note("pause", by=pause.by, detail=f"{pause.title}: {pause.reason}")
        await self._write({pause.field: pause.stored()})
        log.info("pause.began", what=pause.what, name=pause.name, until=pause.until, reason=pause.reason)
        return pause

    async def resume(self, what: str, name: str = "", *, by: str) -> bool:
        """End a pause now; of a model also its open breaker. False when there was none. Raises as ``pause``."""
        if what == "model":  # one that is no longer in the settings may still be paused
            check_place("owner", name, self._store.settings)
        else:
            check_place(what, name, self._store.settings)
        await self._audit.note("resume", by=by, detail=f"{what} {name}".rstrip())
        ends = [Pause(what=each, name=name) for each in ((what, BREAKER, "errors") if what == "model" else (what,))]
        ended = await self._write({each.field: "" for each in ends})
        if ended:
            log.info("pause.ended", what=what, name=name)
        return ended

    async def resume_all(self, *, by: str) -> list[Pause]:
        """End every pause, and close every breaker; returns what was paused."""
        found = await self.in_force()
        for pause in found:
            await self.resume("model" if pause.what == BREAKER else pause.what, pause.name, by=by)
        return found

    async def in_force(self) -> list[Pause]:
        """The active pauses, and the breakers that are open or probing."""
        now = await self._now()
        pipe = self._store.redis.pipeline(transaction=False)
        for keys in self._store.shards:
            pipe.hgetall(keys.pauses)
        found: dict[str, Pause] = {}
        for stored in await self._store.ask(pipe.execute()):
            found |= {pause.field: pause for pause in read_pauses(stored, now)}
        order = [*WHATS, BREAKER]
        return sorted(found.values(), key=lambda pause: (order.index(pause.what), pause.name))

    async def held(self) -> int:
        """Return how many turns wait for a pause to end."""
        return sum([await self._store.ask(self._store.redis.zcard(keys.held)) for keys in self._store.shards])

    async def _now(self) -> float:
        seconds, micros = await self._store.ask(self._store.redis.time())
        return float(seconds) + float(micros) / 1e6

    async def _write(self, changes: dict[str, str]) -> bool:
        words = [word for pair in changes.items() for word in pair]
        before = [await self._store.ask(self._change(keys=_names(keys), args=words)) for keys in self._store.shards]
        return any(before)


def _names(keys: Keys) -> list[str]:
    return [keys.pauses, keys.held, keys.due]
