"""Pauses: their targets, reasons and ends. ``api_client/store/lua/pauses.lua`` enforces them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.counters import clean_label
from api_client.contract.errors import BadRequest
from api_client.contract.settings import Settings

WHATS = {
    "intake": "no new turns are taken",
    "model": "no agent of this model starts",
    "queue": "run: no agent starts; check: no answer is validated",
    "key": "no agent starts for turns that came with this key",
    "owner": "no agent starts for turns of this owner",
}
QUEUE_NAMES = ("run", "check")
BREAKER, LIMIT, INTAKE = "breaker", "limit", "intake"
_LONGEST_REASON, _LONGEST_SECONDS = 200, 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A stop that keeps turns from starting: a pause, an open circuit breaker or a rate limit.

    ``what`` is a key of ``WHATS``, ``breaker`` or ``limit``. ``until`` is 0 if a person must resume. ``errors`` counts
    consecutive errors or refusals, ``probing`` says that a turn tries the service now, and ``spent`` that the account
    has no money left.
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
        """Return the Redis hash field that stores the pause."""
        return self.what if self.what == "intake" else f"{self.what}|{clean_label(self.name)}"

    @property
    def title(self) -> str:
        """Return the target of the pause for display, such as ``model opus``."""
        return f"{self.what} {self.name}".rstrip()

    def to_json(self) -> str:
        data = {"until_ms": int(self.until * 1000), "reason": self.reason, "since": self.since, "by": self.by}
        return json.dumps(data)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_pauses(stored: Mapping[bytes, bytes], now: float) -> list[Pause]:
    """Parse stored pauses and return those active at ``now``, and all circuit breakers and limits."""
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


def check_subject(what: str, name: str, settings: Settings) -> None:
    """Raise ``BadRequest`` unless the installation has a model, queue, key or owner with this name."""
    if what not in WHATS:
        raise BadRequest(f"what must be one of {', '.join(WHATS)}, not {what[:80]!r}", param="what")
    if bool(name) == (what == "intake"):
        raise BadRequest("the intake has no name" if name else f"which {what}?", param="name")
    if what == "queue" and name not in QUEUE_NAMES:
        raise BadRequest(f"there are the queues {' and '.join(QUEUE_NAMES)}, not {name[:80]!r}", param="name")
    if what == "model" and name not in settings.models:
        known = ", ".join(settings.models)
        raise BadRequest(f"unknown model {name[:80]!r}; known: {known}", param="name", code="model_not_found")
