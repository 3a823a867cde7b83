"""Builds a task's Celery message (task protocol 2) as text, without kombu, so that a store command can publish it."""

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
from api_client.contract.settings.sentinels import SentinelAddress
from api_client.contract.tasks import RUN_QUEUE, ChainTask, build_chain, choose_queue

#: Counts this process's events, like Celery's logical clock.
_CLOCK = itertools.count(1)


def _create_uuid() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _reply_to() -> str:
    return _thread_id(os.getpid(), threading.get_ident())


@lru_cache(maxsize=64)
def _thread_id(pid: int, thread: int) -> str:
    return str(uuid.uuid3(uuid.NAMESPACE_OID, f"{uuid.getnode()}-{pid}-{thread}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStamp:
    """The values that differ from one Celery message to the next: ids, sender, clock and time."""

    root_id: str = field(default_factory=_create_uuid)
    next_id: str = field(default_factory=_create_uuid)
    reply_to: str = field(default_factory=_reply_to)
    delivery_tag: str = field(default_factory=_create_uuid)
    event_tag: str = field(default_factory=_create_uuid)
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    clock: int = field(default_factory=_CLOCK.__next__)
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A Celery message for a task, together with the ``task-sent`` event for monitoring tools."""

    queue: str
    message: str
    channel: str
    event: str


def build_announcement(
    settings: Settings, chain_task: ChainTask, turn_id: str, session_id: str, stamp: MessageStamp
) -> Announcement:
    """Build the Celery message and the ``task-sent`` event for a task of a turn."""
    message, event = _task_templates(chain_task)
    prefix = f"{settings.namespace}:celery:"
    given: dict[str, str | int | float] = {
        "turn_id": turn_id,
        "session_id": _escape_json(session_id),
        "session_shown": _escape_json(_escape_quotes(session_id)),
        "root_id": stamp.root_id,
        "next_id": stamp.next_id,
        "reply_to": stamp.reply_to,
        "origin": _escape_json(f"gen{stamp.pid}@{stamp.host}"),
        "pid": stamp.pid,
        "clock": stamp.clock,
        "at": stamp.at,
        "utcoffset": (time.altzone if time.localtime(stamp.at).tm_isdst else time.timezone) / 3600,
    }
    return Announcement(
        queue=prefix + choose_queue(chain_task),
        message=message.fill_template(given, stamp.delivery_tag),
        channel=f"{prefix}/0.celeryev/task.sent",
        event=event.fill_template(given, stamp.event_tag),
    )


def build_enqueue_arguments(
    settings: Settings, chain_task: ChainTask, turn_id: str, session_id: str, since: float
) -> dict[str, str | bytes | int]:
    """Return the named arguments of the Lua script ``enqueue.lua`` for a turn's first run.

    If the store holds the queues, the script announces the task itself. ``since`` is when the session's preceding turn
    was created, in seconds since the epoch, or 0.
    """
    made = Announcement("", "", "", "")
    if settings.has_queues:
        made = build_announcement(settings, chain_task, turn_id, session_id, MessageStamp())
    return {"message": made.message, "channel": made.channel, "event": made.event, "since": int(since * 1000)}


class _MessageTemplate(NamedTuple):
    """A Celery message with placeholders for the values that differ between messages."""

    body: str
    around: str

    def fill_template(self, given: Mapping[str, str | int | float], tag: str) -> str:
        body = base64.b64encode((self.body % given).encode()).decode()
        return self.around % {**given, "body": body, "tag": tag}


def _text_blank(name: str) -> str:
    return f"\0{name}\0"


def _number_blank(name: str) -> str:
    return f"\0#{name}\0"


_BLANK = re.compile(r'"\\u0000#(\w+)\\u0000"|\\u0000(\w+)\\u0000')


def _make_template(value: Any) -> str:
    return _BLANK.sub(lambda blank: f"%({blank[1] or blank[2]})s", json.dumps(value))


@lru_cache(maxsize=256)
def _task_templates(chain_task: ChainTask) -> tuple[_MessageTemplate, _MessageTemplate]:
    first, *rest = build_chain(chain_task, _text_blank("turn_id"), _text_blank("session_id"))
    shown = _format_kwargs(first["kwargs"] | {"session_id": _text_blank("session_shown")})
    return _message_template(first, rest, shown), _event_template(first, shown)


def _message_template(first: Mapping[str, Any], rest: list[dict[str, Any]], shown: str) -> _MessageTemplate:
    chain = [
        {
            "task": item["name"],
            "args": [],
            "kwargs": item["kwargs"],
            "options": {"queue": item["queue"], "task_id": _text_blank("next_id"), "reply_to": _text_blank("reply_to")},
            "subtask_type": None,
            "immutable": True,
        }
        for item in rest
    ]
    body = [[], first["kwargs"], {"callbacks": None, "errbacks": None, "chain": chain, "chord": None}]
    headers = {
        "lang": "py",
        "task": first["name"],
        "id": _text_blank("root_id"),
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": _text_blank("root_id"),
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": shown,
        "origin": _text_blank("origin"),
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": _text_blank("root_id"),
        "reply_to": _text_blank("reply_to"),
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": first["queue"]},
        "priority": 0,
    }
    return _wrap_envelope(body, headers, properties)


def _event_template(first: Mapping[str, Any], shown: str) -> _MessageTemplate:
    body = {
        "hostname": _text_blank("origin"),
        "utcoffset": _number_blank("utcoffset"),
        "pid": _number_blank("pid"),
        "clock": _number_blank("clock"),
        "uuid": _text_blank("root_id"),
        "root_id": _text_blank("root_id"),
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
        "timestamp": _number_blank("at"),
        "type": "task-sent",
    }
    properties = {
        "delivery_mode": 1,
        "delivery_info": {"exchange": "celeryev", "routing_key": "task.sent"},
        "priority": 0,
    }
    return _wrap_envelope(body, {"hostname": _text_blank("origin")}, properties)


def _wrap_envelope(body: Any, headers: Mapping[str, Any], properties: Mapping[str, Any]) -> _MessageTemplate:
    around = {
        "body": _text_blank("body"),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {**properties, "body_encoding": "base64", "delivery_tag": _text_blank("tag")},
    }
    return _MessageTemplate(_make_template(body), _make_template(around))


def _format_kwargs(kwargs: Mapping[str, Any]) -> str:
    texts = {name: f"'{_escape_quotes(value)}'" for name, value in kwargs.items() if isinstance(value, str)}
    return "{" + ", ".join(f"'{name}': {texts.get(name, value)}" for name, value in kwargs.items()) + "}"


def _escape_quotes(text: str) -> str:
    return text.replace("'", "\\'")


def _escape_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def celery_settings(settings: Settings) -> dict[str, Any]:
    """Return the Celery configuration shared by clients and workers.

    Late acknowledgement and result backend are off, because only the turn's record must survive.
    """
    sentinels = SentinelAddress.parse(settings.broker_url)
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
