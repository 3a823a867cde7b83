"""A turn's Celery message, as it is stored in a queue, and the task that it names."""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from typing import Any

from worker.turns.tasks.task_events import Task


class ReceivedMessage:
    """A message as ``celery_internals`` reads it. kombu's own can be acknowledged, and takes longer to make."""

    __slots__ = ("_body", "headers")

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.headers: Mapping[str, Any] = message["headers"]
        self._body: str = message["body"]

    @property
    def payload(self) -> Any:
        """Arguments, keyword arguments, and what belongs to the chain."""
        return json.loads(binascii.a2b_base64(self._body).decode())  # of bytes, json would find out the encoding first

    @staticmethod
    def reads(message: Mapping[str, Any]) -> bool:
        """Return whether a message is written as ours are: all others are kombu's to read."""
        return (
            message["content-type"] == "application/json"
            and message["content-encoding"] == "utf-8"
            and message["properties"]["body_encoding"] == "base64"
            and "compression" not in message["headers"]
        )


def task_of(headers: Mapping[str, Any], payload: Any) -> Task:
    """The task that a message names.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is not the message of a task.
    """
    _, kwargs, embed = payload
    return Task(
        name=headers["task"],
        task_id=headers["id"],
        kwargs=dict(kwargs),
        args_text=headers.get("argsrepr") or "()",
        kwargs_text=headers.get("kwargsrepr") or repr(kwargs),
        root_id=headers.get("root_id") or headers["id"],
        parent_id=headers.get("parent_id") or "",
        chain=embed.get("chain") or (),
    )
