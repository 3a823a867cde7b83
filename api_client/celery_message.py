"""A link's Celery message in its wire form (task protocol 2): the command that stores a turn can push it itself.

Made without kombu, and compared with the message that the installed Celery sends, byte for byte
(tests/integration/test_celery_message.py): a test with each new version of Celery.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from api_client.contract.settings import Settings
from api_client.contract.tasks import Link, chain_of

#: Counts this process's events, as Celery's logical clock does.
_CLOCK = itertools.count(1)


def _uuid() -> str:
    return str(uuid.uuid4())


def _reply_to() -> str:
    """Names this thread, as Celery does where nobody waits for a reply."""
    return _name_of(os.getpid(), threading.get_ident())


@lru_cache(maxsize=64)
def _name_of(pid: int, thread: int) -> str:
    return str(uuid.uuid3(uuid.NAMESPACE_OID, f"{uuid.getnode()}-{pid}-{thread}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What differs from message to message: ids, sender, time."""

    root_id: str = field(default_factory=_uuid)
    next_id: str = field(default_factory=_uuid)
    reply_to: str = field(default_factory=_reply_to)
    delivery_tag: str = field(default_factory=_uuid)
    event_tag: str = field(default_factory=_uuid)
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    clock: int = field(default_factory=lambda: next(_CLOCK))
    at: float = field(default_factory=time.time)

    @property
    def origin(self) -> str:
        """The sender, as Celery names one that is not a worker."""
        return f"gen{self.pid}@{self.host}"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is pushed and published: the message into its queue's list, and the event ``task-sent`` for operators."""

    queue: str
    message: str
    channel: str
    event: str


def announcement(settings: Settings, link: Link, turn_id: str, session_id: str, stamp: Stamp) -> Announcement:
    """The message of the chain that carries out ``link``, and its event."""
    first, *rest = chain_of(link, turn_id, session_id)
    chain = [
        {
            "task": item["name"],
            "args": [],
            "kwargs": item["kwargs"],
            "options": {"queue": item["queue"], "task_id": stamp.next_id, "reply_to": stamp.reply_to},
            "subtask_type": None,
            "immutable": True,
        }
        for item in rest
    ]
    prefix, shown = f"{settings.namespace}:celery:", _shown(first["kwargs"])
    body = [[], first["kwargs"], {"callbacks": None, "errbacks": None, "chain": chain, "chord": None}]
    headers = {
        "lang": "py",
        "task": first["name"],
        "id": stamp.root_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": stamp.root_id,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": shown,
        "origin": stamp.origin,
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": stamp.root_id,
        "reply_to": stamp.reply_to,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": first["queue"]},
        "priority": 0,
    }
    return Announcement(
        queue=prefix + first["queue"],
        message=_wire(body, headers, properties, stamp.delivery_tag),
        channel=f"{prefix}/0.celeryev/task.sent",
        event=_event(first, shown, stamp),
    )


def _shown(kwargs: Mapping[str, Any]) -> str:
    """Arguments as Celery shows them: like ``repr``, but of a text only the quote is escaped."""
    texts = {name: "'" + value.replace("'", "\\'") + "'" for name, value in kwargs.items() if isinstance(value, str)}
    return "{" + ", ".join(f"'{name}': {texts.get(name, value)}" for name, value in kwargs.items()) + "}"


def _event(first: Mapping[str, Any], shown: str, stamp: Stamp) -> str:
    body = {
        "hostname": stamp.origin,
        "utcoffset": (time.altzone if time.localtime(stamp.at).tm_isdst else time.timezone) / 3600,
        "pid": stamp.pid,
        "clock": stamp.clock,
        "uuid": stamp.root_id,
        "root_id": stamp.root_id,
        "parent_id": None,
        "name": first["name"],
        "args": "()",
        "kwargs": shown,
        "retries": 0,
        "eta": None,
        "expires": None,
        "queue": first["queue"],
        "exchange": "",
        "routing_key": first["queue"],
        "timestamp": stamp.at,
        "type": "task-sent",
    }
    properties = {
        "delivery_mode": 1,
        "delivery_info": {"exchange": "celeryev", "routing_key": "task.sent"},
        "priority": 0,
    }
    return _wire(body, {"hostname": stamp.origin}, properties, stamp.event_tag)


def _wire(body: Any, headers: Mapping[str, Any], properties: Mapping[str, Any], tag: str) -> str:
    return json.dumps(
        {
            "body": base64.b64encode(json.dumps(body).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": {**properties, "body_encoding": "base64", "delivery_tag": tag},
        }
    )
