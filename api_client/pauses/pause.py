"""A pause: what it stops, why, and until when. Pure. The store's side is ``api_client/store/lua/pauses.lua``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.counters import label
from api_client.contract.errors import BadRequest
from api_client.contract.settings import Settings

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
