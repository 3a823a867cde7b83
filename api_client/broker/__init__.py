"""Builds a task's Celery message (task protocol 2), so that the command that stores a turn can publish the message.

The messages are built without kombu, and compared byte for byte with those of the installed Celery
(tests/integration/test_celery_message.py). The common JSON of all messages of a task is built once (``_forms``).
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from api_client.contract.settings import Settings
from api_client.contract.settings.sentinels import Sentinels
from api_client.contract.tasks import RUN_QUEUE, Link, chain_of, queue_of

#: Counts this process's events, like Celery's logical clock.
_CLOCK = itertools.count(1)


def _uuid() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _reply_to() -> str:
    """Return an id for the current thread to use as the ``reply_to`` of Celery messages."""
    return _name_of(os.getpid(), threading.get_ident())


@lru_cache(maxsize=64)
def _name_of(pid: int, thread: int) -> str:
    return str(uuid.uuid3(uuid.NAMESPACE_OID, f"{uuid.getnode()}-{pid}-{thread}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The fields that differ between otherwise equal Celery messages: ids, sender and time."""

    root_id: str = field(default_factory=_uuid)
    next_id: str = field(default_factory=_uuid)
    reply_to: str = field(default_factory=_reply_to)
    delivery_tag: str = field(default_factory=_uuid)
    event_tag: str = field(default_factory=_uuid)
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    clock: int = field(default_factory=_CLOCK.__next__)
    at: float = field(default_factory=time.time)

    @property
    def origin(self) -> str:
        """Return the sender's name in the form that Celery uses for clients."""
        return f"gen{self.pid}@{self.host}"


@dataclass(frozen=True, slots=True)
class Announcement:
    """A Celery message that announces a task, and the ``task-sent`` event for monitoring tools."""

    queue: str
    message: str
    channel: str
    event: str


def announcement(settings: Settings, link: Link, turn_id: str, session_id: str, stamp: Stamp) -> Announcement:
    """Build the Celery message and the event that announce the task ``link`` of a turn."""
    message, event = _forms(link)
    prefix = f"{settings.namespace}:celery:"
    given: dict[str, str | int | float] = {
        "turn_id": turn_id,
        "session_id": _escaped(session_id),
        "session_shown": _escaped(_quoted(session_id)),
        "root_id": stamp.root_id,
        "next_id": stamp.next_id,
        "reply_to": stamp.reply_to,
        "origin": _escaped(stamp.origin),
        "pid": stamp.pid,
        "clock": stamp.clock,
        "at": stamp.at,
        "utcoffset": (time.altzone if time.localtime(stamp.at).tm_isdst else time.timezone) / 3600,
    }
    return Announcement(
        queue=prefix + queue_of(link),
        message=message.filled(given, stamp.delivery_tag),
        channel=f"{prefix}/0.celeryev/task.sent",
        event=event.filled(given, stamp.event_tag),
    )


class _Form(NamedTuple):
    """A template for Celery messages, which ``%`` fills with the fields of one message."""

    body: str
    around: str

    def filled(self, given: Mapping[str, str | int | float], tag: str) -> str:
        body = base64.b64encode((self.body % given).encode()).decode()
        return self.around % {**given, "body": body, "tag": tag}


def _text(name: str) -> str:
    return f"\0{name}\0"


def _number(name: str) -> str:
    return f"\0#{name}\0"


_BLANK = re.compile(r'"\\u0000#(\w+)\\u0000"|\\u0000(\w+)\\u0000')


def _form(value: Any) -> str:
    return _BLANK.sub(lambda blank: f"%({blank[1] or blank[2]})s", json.dumps(value))


@lru_cache(maxsize=256)
def _forms(link: Link) -> tuple[_Form, _Form]:
    first, *rest = chain_of(link, _text("turn_id"), _text("session_id"))
    shown = _shown(first["kwargs"] | {"session_id": _text("session_shown")})
    return _message(first, rest, shown), _event(first, shown)


def _message(first: Mapping[str, Any], rest: list[dict[str, Any]], shown: str) -> _Form:
    chain = [
        {
            "task": item["name"],
            "args": [],
            "kwargs": item["kwargs"],
            "options": {"queue": item["queue"], "task_id": _text("next_id"), "reply_to": _text("reply_to")},
            "subtask_type": None,
            "immutable": True,
        }
        for item in rest
    ]
    body = [[], first["kwargs"], {"callbacks": None, "errbacks": None, "chain": chain, "chord": None}]
    headers = {
        "lang": "py",
        "task": first["name"],
        "id": _text("root_id"),
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": _text("root_id"),
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": shown,
        "origin": _text("origin"),
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": _text("root_id"),
        "reply_to": _text("reply_to"),
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": first["queue"]},
        "priority": 0,
    }
    return _wire(body, headers, properties)


def _event(first: Mapping[str, Any], shown: str) -> _Form:
    body = {
        "hostname": _text("origin"),
        "utcoffset": _number("utcoffset"),
        "pid": _number("pid"),
        "clock": _number("clock"),
        "uuid": _text("root_id"),
        "root_id": _text("root_id"),
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
        "timestamp": _number("at"),
        "type": "task-sent",
    }
    properties = {
        "delivery_mode": 1,
        "delivery_info": {"exchange": "celeryev", "routing_key": "task.sent"},
        "priority": 0,
    }
    return _wire(body, {"hostname": _text("origin")}, properties)


def _wire(body: Any, headers: Mapping[str, Any], properties: Mapping[str, Any]) -> _Form:
    around = {
        "body": _text("body"),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {**properties, "body_encoding": "base64", "delivery_tag": _text("tag")},
    }
    return _Form(_form(body), _form(around))


def _shown(kwargs: Mapping[str, Any]) -> str:
    texts = {name: f"'{_quoted(value)}'" for name, value in kwargs.items() if isinstance(value, str)}
    return "{" + ", ".join(f"'{name}': {texts.get(name, value)}" for name, value in kwargs.items()) + "}"


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def celery_settings(settings: Settings) -> dict[str, Any]:
    """Return the Celery configuration for clients and workers.

    There is no late acknowledgement and no result backend, because only the turn's record must survive.
    """
    sentinels = Sentinels.parse(settings.broker_url)
    return {
        "broker_url": settings.celery_url,
        "task_ignore_result": True,
        "task_publish_retry": False,
        "task_default_queue": RUN_QUEUE,
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A read-only or full broker answers with an error; wait for its recovery, and keep the agents running.
        "broker_channel_error_retry": True,
        "broker_transport_options": {
            "priority_steps": [0],  # a single list per queue, because all messages have the same priority
            "unacked_restore_interval": 86_400,  # messages are never left unacknowledged
            "global_keyprefix": f"{settings.namespace}:celery:",
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            **({"master_name": sentinels.master} if sentinels else {}),
        },
        "worker_hijack_root_logger": False,
    }
