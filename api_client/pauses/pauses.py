"""Sets, ends and lists pauses, which the store holds for all hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from api_client.contract.errors import BadRequest
from api_client.contract.order_log import Orders
from api_client.contract.owners import parse_owner
from api_client.pauses.pause import (
    _LONGEST_REASON,
    _LONGEST_SECONDS,
    BREAKER,
    LIMIT,
    WHATS,
    Pause,
    check_subject,
    read_pauses,
)
from api_client.store import Store
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

_CHANGE = Path(__file__).with_name("change.lua")


class Pauses:
    """Starts, ends and lists pauses. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, orders: Orders) -> None:
        self._store = store
        self._orders = orders
        self._change = store.redis.register_script(_CHANGE.read_text(encoding="utf-8"))

    async def set_pause(self, pause: Pause, *, seconds: float = 0.0) -> Pause:
        """Start a pause, replacing an earlier pause of the same target, and return the stored pause.

        An owner may be given by name. The pause lasts ``seconds``, or until ``pause.until``, or until somebody
        resumes. Raises ``BadRequest``.
        """
        now = await self._store.read_clock_ms() / 1000
        name = _find_subject(pause.what, pause.name)
        pause = replace(pause, name=name, since=now, until=now + seconds if seconds else pause.until)
        check_subject(pause.what, pause.name, self._store.settings)
        if len(pause.reason) > _LONGEST_REASON or not pause.reason.isprintable():
            raise BadRequest(f"reason must be one line of at most {_LONGEST_REASON} characters", param="reason")
        if pause.until and not now < pause.until <= now + _LONGEST_SECONDS:
            raise BadRequest("until must be in the future, and within a year", param="until")
        async with self._orders.place_order("pause", by=pause.by, detail=f"{pause.title}: {pause.reason}"):
            await self._store_changes({pause.field: pause.to_json()})
        log.info("pause.began", what=pause.what, name=pause.name, until=pause.until, reason=pause.reason)
        return pause

    async def end_pause(self, what: str, name: str = "", *, by: str) -> bool:
        """End a pause, a limit or a model's circuit breaker. Return False if there was nothing to end."""
        name = _find_subject(what, name)
        if what in {"model", LIMIT}:  # a subject no longer in the settings may still be paused
            check_subject("owner", name, self._store.settings)
        else:
            check_subject(what, name, self._store.settings)
        ends = [Pause(what=each, name=name) for each in ((what, BREAKER, "errors") if what == "model" else (what,))]
        if what == "model":
            ends.append(Pause(what=LIMIT, name=self._store.settings.find_service(name)))
        async with self._orders.place_order("resume", by=by, detail=f"{what} {name}".rstrip()) as order:
            ended = await self._store_changes({each.field: "" for each in ends})
            order.refused = "" if ended else "it was not paused"
        if ended:
            log.info("pause.ended", what=what, name=name)
        return ended

    async def end_all(self, *, by: str) -> list[Pause]:
        """End every pause and close every circuit breaker. Return the ended pauses."""
        found = await self.list_active()
        for pause in found:
            await self.end_pause("model" if pause.what == BREAKER else pause.what, pause.name, by=by)
        return found

    async def list_active(self, now: float = 0.0) -> list[Pause]:
        """Return all pauses, circuit breakers and limits that are active at ``now`` (0: the current time)."""
        now = now or await self._store.read_clock_ms() / 1000
        found = read_pauses(await self._store.read_hash(self._store.keys.pauses), now)
        order = [*WHATS, BREAKER, LIMIT]
        return sorted(found, key=lambda pause: (order.index(pause.what), pause.name))

    async def count_held(self) -> int:
        """Return how many turns are waiting because of pauses."""
        return int(await self._store.send_command("ZCARD", self._store.keys.held))

    async def _store_changes(self, changes: dict[str, str]) -> bool:
        words = [word for pair in changes.items() for word in pair]
        keys = self._store.keys
        return bool(await self._store.await_reply(self._change(keys=[keys.pauses, keys.held, keys.due], args=words)))


def _find_subject(what: str, name: str) -> str:
    return parse_owner(name) if what == "owner" else name
