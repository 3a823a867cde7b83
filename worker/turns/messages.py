"""Which messages a worker takes from its queues: none while it cannot work, and none that is no message.

What lies in a queue and is no message of Celery's is dropped and logged, instead of ending the worker.

kombu's Redis transport lets an item that is no JSON, or JSON of another shape, end the worker with every agent it runs.
Nothing is lost by dropping it: a turn's record says what comes next, and reapers announce that again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import structlog
from kombu.transport.redis import Channel, QoS

log = structlog.get_logger()

_READ, _ASKED = "_brpop_read", "can_consume"


def listen_only_while(well: Callable[[], bool]) -> None:
    """Have this process's queues give messages only while ``well()``: what it does not take, another worker does.

    The broker is asked before each wait for a message, so at most the one that is awaited is still received.
    """
    asked = QoS.can_consume
    setattr(QoS, _ASKED, lambda qos: well() and asked(qos))


def drop_what_is_none() -> None:
    """Have every channel made from now on drop what is no message. Doing it twice changes nothing."""
    read = getattr(Channel, _READ)
    if getattr(read, "drops", False):
        return

    @functools.wraps(read)
    def guarded(channel: Any, **options: Any) -> Any:
        try:
            return read(channel, **options)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.error("message.refused", error=type(error).__name__)
            return True

    guarded.drops = True  # type: ignore[attr-defined]
    setattr(Channel, _READ, guarded)
