"""Notifications to outside systems, in the wire form of OpenAI's webhooks (body and signature).

They hold ids, numbers and names, never prompts or answers.
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

#: Kind of notification -> when it is sent.
KINDS: Mapping[str, str] = {
    "response.completed": "A response that was asked for with `background` has its answer.",
    "response.failed": "Such a response ended without one.",
    "response.cancelled": "Such a response was cancelled.",
    "turn.failed": "A turn ended as failed, incomplete, refused, error or expired.",
    "turn.dead": "A turn killed its workers too often and is now a dead letter.",
    "worker.gone": "A worker process is silent, did not sign off, and no other took its place.",
    "queue.stuck": "Turns that could run do not.",
} | collect_declarations("NOTIFICATION_KINDS")
#: Seconds for which a repeated notification is dropped as a duplicate, and for which delivery is attempted.
REMEMBERED_SECONDS, TRIED_SECONDS = 8 * 86_400.0, 86_400.0
#: Delay between two deliveries: starts at the first value and doubles up to the second, in seconds.
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 5.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A message to an external system about an event, such as a failed turn.

    Attributes:
        kind: one of ``KINDS``.
        subject: what it is about, such as a turn id; kind and subject identify the notification.
        at: when it happened, in seconds since the epoch.

    Raises:
        ValueError: the kind is unknown.
    """

    kind: str
    subject: str
    at: float
    data: Mapping[str, str | int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind of notification {self.kind!r}; there are: {', '.join(KINDS)}")

    @property
    def notification_id(self) -> str:
        """Return the id by which receivers recognise repeated deliveries of a notification."""
        return "evt_" + hashlib.sha256(f"{self.kind}\n{self.subject}".encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def to_body(self) -> str:
        """Encode the notification as JSON in the format of OpenAI's webhook events."""
        data: dict[str, Any] = {
            "id": self.notification_id,
            "object": "event",
            "created_at": int(self.at),
            "type": self.kind,
            "data": dict(self.data),
        }
        return json.dumps(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    """A notification that waits in the outbox until it is delivered.

    Attributes:
        put_at: when it was put into the outbox, in seconds since the epoch.
        tries: number of deliveries so far. taken: targets that accepted it. error: why the last delivery failed.
    """

    notification_id: str
    body: str
    put_at: float
    tries: int = 0
    taken: tuple[str, ...] = field(default=())
    error: str = ""

    @property
    def kind(self) -> str:
        """Return the kind of the notification, such as ``response.completed``."""
        return str(json.loads(self.body)["type"])

    @property
    def delay(self) -> float:
        """Return the seconds to wait before the next delivery, which double with each failed delivery."""
        return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** max(0, self.tries - 1))

    def to_dict(self) -> dict[str, Any]:
        data = {"notification_id": self.notification_id, "kind": self.kind, "put_at": self.put_at, "tries": self.tries}
        return {**data, "error": self.error, "body": self.body}

    def to_json(self) -> str:
        data = {"body": self.body, "put_at": round(self.put_at * 1000), "tries": self.tries, "error": self.error}
        return json.dumps({**data, "taken": list(self.taken)})

    @classmethod
    def from_json(cls, notification_id: str, text: bytes) -> OutboxEntry:
        data: dict[str, Any] = json.loads(text)
        return cls(
            notification_id=notification_id,
            body=data["body"],
            put_at=data["put_at"] / 1000,
            tries=data.get("tries", 0),
            taken=tuple(data.get("taken") or ()),
            error=data.get("error", ""),
        )


def sign_headers(secret: str, notification_id: str, body: str, now: float) -> dict[str, str]:
    """Return the HTTP headers for a webhook delivery, including a signature if there is a secret.

    ``secret`` is ``whsec_`` and base64, or any text. ``now`` is in seconds since the epoch. Raises ``ValueError`` if
    the text after ``whsec_`` is not base64.
    """
    headers = {"webhook-id": notification_id, "webhook-timestamp": str(int(now))}
    if secret:
        key = base64.b64decode(secret[6:], validate=True) if secret.startswith("whsec_") else secret.encode()
        text = f"{notification_id}.{int(now)}.{body}".encode()
        headers["webhook-signature"] = "v1," + base64.b64encode(hmac.digest(key, text, "sha256")).decode()
    return headers
