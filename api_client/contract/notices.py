"""Calls for help: what somebody outside is to learn at once, as one typed value and one wire form.

The wire is that of OpenAI's webhooks: the same body, the same signature, so that their SDK verifies ours. Who wants to
call somebody puts a notice into the outbox (``api_client.notifications``); a worker sends it. A notice holds ids,
numbers and names, never prompts or answers. Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.catalogue import collect_declarations

#: What a notice may be about: kind -> when it is sent.
KINDS: Mapping[str, str] = {
    "response.completed": "A response that was asked for with `background` has its answer.",
    "response.failed": "Such a response ended without one.",
    "response.cancelled": "Such a response was cancelled.",
    "turn.failed": "A turn ended as failed, incomplete, refused, error or expired.",
    "turn.dead": "A turn took down its workers too often; it is in the dead letter list.",
    "worker.gone": "A worker process is silent, did not sign off, and no other took its place.",
    "queue.stuck": "Turns that could run do not.",
} | collect_declarations("NOTICE_KINDS")
#: A notice that was put once is not put again for this long, in seconds; and this long it is tried.
REMEMBERED_SECONDS, TRIED_SECONDS = 8 * 86_400.0, 86_400.0
#: Between two tries: it begins with the first and doubles up to the second, in seconds.
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 5.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One call for help.

    Attributes:
        kind: one of ``KINDS``.
        subject: what it is about, such as a turn's id; the same kind and subject make the same notice, put once.
        at: when it happened, in seconds since the epoch.
        data: what the receiver learns: texts and numbers, no prompts.

    Raises:
        ValueError: no such kind.
    """

    kind: str
    subject: str
    at: float
    data: Mapping[str, str | int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind of notice {self.kind!r}; there are: {', '.join(KINDS)}")

    @property
    def notice_id(self) -> str:
        """Its id: receivers that saw it before leave it alone."""
        return "evt_" + hashlib.sha256(f"{self.kind}\n{self.subject}".encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def body(self) -> str:
        """Return the body to send (JSON): OpenAI's object of an event."""
        data: dict[str, Any] = {
            "id": self.notice_id,
            "object": "event",
            "created_at": int(self.at),
            "type": self.kind,
            "data": dict(self.data),
        }
        return json.dumps(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A notice in the outbox.

    Attributes:
        notice_id: its id. body: the JSON that is sent.
        put_at: when it was put, in seconds since the epoch.
        tries: how often it was tried. taken: the targets that took it. error: why the last try failed.
    """

    notice_id: str
    body: str
    put_at: float
    tries: int = 0
    taken: tuple[str, ...] = field(default=())
    error: str = ""

    @property
    def kind(self) -> str:
        """Return what it is about."""
        return str(json.loads(self.body)["type"])

    @property
    def delay(self) -> float:
        """Return how long after this try the next one comes, in seconds."""
        return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** max(0, self.tries - 1))

    def to_dict(self) -> dict[str, Any]:
        """The entry as a JSON-ready mapping."""
        data = {"notice_id": self.notice_id, "kind": self.kind, "put_at": self.put_at, "tries": self.tries}
        return {**data, "error": self.error, "body": self.body}

    def stored(self) -> str:
        """The entry as it is stored."""
        data = {"body": self.body, "put_at": round(self.put_at * 1000), "tries": self.tries, "error": self.error}
        return json.dumps({**data, "taken": list(self.taken)})

    @classmethod
    def read(cls, notice_id: str, text: bytes) -> Entry:
        """Read a stored entry."""
        data: dict[str, Any] = json.loads(text)
        return cls(
            notice_id=notice_id,
            body=data["body"],
            put_at=data["put_at"] / 1000,
            tries=data.get("tries", 0),
            taken=tuple(data.get("taken") or ()),
            error=data.get("error", ""),
        )


def signed(secret: str, notice_id: str, body: str, now: float) -> dict[str, str]:
    """The headers of a delivery: Standard Webhooks, as OpenAI signs. Without a secret there is no signature.

    ``secret``: ``whsec_`` and base64, or any text. ``notice_id``: the same for every try. ``now``: seconds since the
    epoch; receivers refuse old ones. Raises ``ValueError``: what follows ``whsec_`` is not base64.
    """
    headers = {"webhook-id": notice_id, "webhook-timestamp": str(int(now))}
    if secret:
        key = base64.b64decode(secret[6:], validate=True) if secret.startswith("whsec_") else secret.encode()
        text = f"{notice_id}.{int(now)}.{body}".encode()
        headers["webhook-signature"] = "v1," + base64.b64encode(hmac.digest(key, text, "sha256")).decode()
    return headers
