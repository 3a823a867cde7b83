"""Obstacles to the start of turns: pauses that operators set, circuit breakers of models, limits of services."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from api_client.contract.counters import label
from api_client.contract.issues import BadRequest
from api_client.contract.settings import Settings
from api_client.store import Store
from api_client.store.audit import Audit
from api_client.store.module_log import ModuleLog

# A pause: what it stops, why, and until when. Pure. The store's side is ``api_client/store/lua/pauses.lua``.

#: What can be paused -> what that means. All but the intake need a name.
WHATS = {
    "intake": "no new turns are taken",
    "model": "no agent of this model starts",
    "queue": "run: no agent starts; check: no answer is judged",
    "key": "no agent starts for turns that came with this key",
    "owner": "no agent starts for turns of this owner",
}
QUEUE_NAMES = ("run", "check")
BREAKER, LIMIT, INTAKE = "breaker", "limit", "intake"
_LONGEST_REASON, _LONGEST_SECONDS = 200, 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """An active pause, an open breaker, or the limit of a service.

    Attributes:
        what, name: the pause: a key of ``WHATS``, ``breaker`` with the name of its model, or ``limit`` with that of a
            service (``Settings.upstream_of``).
        reason: why, as chat users read it.
        until, since: seconds since the epoch; ``until`` is 0 where somebody has to resume it.
        by: who paused it; empty for a breaker or a limit.
        errors: of a breaker, the errors in a row that opened it; of a limit, how often the service said so.
        probing: of a breaker, one turn tries the service now.
        spent: of a limit, the account at the service has no money left.
    """

    what: str
    name: str = ""
    reason: str = ""
    until: float = 0.0
    since: float = 0.0
    by: str = ""
    errors: int = 0
    probing: bool = False
    spent: bool = False

    @property
    def field(self) -> str:
        """Its name in the store."""
        return self.what if self.what == "intake" else f"{self.what}|{label(self.name)}"

    @property
    def title(self) -> str:
        """Return what it is, for people: ``model opus``."""
        return f"{self.what} {self.name}".rstrip()

    def stored(self) -> str:
        """Return what the store keeps of it."""
        data = {"until_ms": int(self.until * 1000), "reason": self.reason, "since": self.since, "by": self.by}
        return json.dumps(data)

    def to_dict(self) -> dict[str, Any]:
        """The pause as a JSON-ready mapping."""
        return asdict(self)


def read_pauses(stored: Mapping[bytes, bytes], now: float) -> list[Pause]:
    """The pauses that are active at ``now`` (seconds since the epoch), and every breaker or limit until it ends."""
    found = []
    for field, text in sorted(stored.items()):
        what, _, name = field.decode("utf-8", "replace").partition("|")
        opens = what in {BREAKER, LIMIT}
        if what not in WHATS and not opens:
            continue
        data = json.loads(text)
        until = float(data["until_ms"]) / 1000
        if opens or not until or until > now:
            found.append(
                Pause(
                    what=what,
                    name=name,
                    reason=str(data["reason"]),
                    until=until,
                    since=float(data["since"]),
                    by=str(data.get("by", "")),
                    errors=int(data.get("errors", 0)),
                    probing=bool(data.get("probe")) and until <= now,
                    spent=bool(data.get("spent")),
                )
            )
    return found


def check_place(what: str, name: str, settings: Settings) -> None:
    """Refuse what cannot be paused. Raises ``BadRequest``: names the field."""
    if what not in WHATS:
        raise BadRequest(f"what must be one of {', '.join(WHATS)}, not {what[:80]!r}", param="what")
    if bool(name) == (what == "intake"):
        raise BadRequest("the intake has no name" if name else f"which {what}?", param="name")
    if what == "queue" and name not in QUEUE_NAMES:
        raise BadRequest(f"there are the queues {' and '.join(QUEUE_NAMES)}, not {name[:80]!r}", param="name")
    if what == "model" and name not in settings.models:
        known = ", ".join(settings.models)
        raise BadRequest(f"unknown model {name[:80]!r}; known: {known}", param="name", code="model_not_found")


def clock_time(at: float, now: float) -> str:
    """A moment as people read it, with its zone: ``14:30 UTC``, on another day with its date."""
    moment = datetime.fromtimestamp(at).astimezone()
    near = abs(at - now) < timedelta(hours=20).total_seconds()
    return f"{moment:%H:%M %Z}" if near else f"{moment:%Y-%m-%d %H:%M %Z}"


# Setting, ending and reading pauses. They are in the store, so all hosts obey them, and need nobody to be there. Each
# shard has them all; a breaker or a limit belongs to the shard whose turns met it.

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

        Agents at work finish. Again: the new reason and end count. Returns the pause as it is stored. Raises
        ``BadRequest``: what cannot be paused; names the field.
        """
        now = await self._store.clock_ms() / 1000
        pause = replace(pause, since=now, until=now + seconds if seconds else pause.until)
        check_place(pause.what, pause.name, self._store.settings)
        if len(pause.reason) > _LONGEST_REASON or not pause.reason.isprintable():
            raise BadRequest(f"reason must be one line of at most {_LONGEST_REASON} characters", param="reason")
        if pause.until and not now < pause.until <= now + _LONGEST_SECONDS:
            raise BadRequest("until must be in the future, and within a year", param="until")
        async with self._audit.noted("pause", by=pause.by, detail=f"{pause.title}: {pause.reason}"):
            await self._write({pause.field: pause.stored()})
        log.info("pause.began", what=pause.what, name=pause.name, until=pause.until, reason=pause.reason)
        return pause

    async def resume(self, what: str, name: str = "", *, by: str) -> bool:
        """End a pause or a limit now; of a model also its open breaker, and the limit of its service.

        False when there was none. Raises as ``pause``.
        """
        if what in {"model", LIMIT}:  # one that is no longer in the settings may still be paused
            check_place("owner", name, self._store.settings)
        else:
            check_place(what, name, self._store.settings)
        ends = [Pause(what=each, name=name) for each in ((what, BREAKER, "errors") if what == "model" else (what,))]
        if what == "model":
            ends.append(Pause(what=LIMIT, name=self._store.settings.upstream_of(name)))
        async with self._audit.noted("resume", by=by, detail=f"{what} {name}".rstrip()) as order:
            ended = await self._write({each.field: "" for each in ends})
            order.refused = "" if ended else "it was not paused"
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
        """The active pauses, the breakers that are open or probing, and the limits of services."""
        now = await self._store.clock_ms() / 1000
        pipe = self._store.redis.pipeline(transaction=False)
        for keys in self._store.shards:
            pipe.hgetall(keys.pauses)
        found: dict[str, Pause] = {}
        for stored in await self._store.ask(pipe.execute()):
            found |= {pause.field: pause for pause in read_pauses(stored, now)}
        order = [*WHATS, BREAKER, LIMIT]
        return sorted(found.values(), key=lambda pause: (order.index(pause.what), pause.name))

    async def held(self) -> int:
        """Return how many turns wait for a pause to end."""
        return sum([await self._store.ask(self._store.redis.zcard(keys.held)) for keys in self._store.shards])

    async def _write(self, changes: dict[str, str]) -> bool:
        words = [word for pair in changes.items() for word in pair]
        before = [
            await self._store.ask(self._change(keys=[keys.pauses, keys.held, keys.due], args=words))
            for keys in self._store.shards
        ]
        return any(before)
