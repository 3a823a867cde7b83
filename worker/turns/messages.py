"""What lies in a queue and is no message of Celery's: dropped and logged, instead of ending the worker.

kombu's Redis transport lets an item that is no JSON, or JSON of another shape, end the worker with every agent it runs.
Nothing is lost by dropping it: a turn's record says what comes next, and reapers announce that again.
"""

from __future__ import annotations

import functools
from typing import Any

import structlog
from kombu.transport.redis import Channel

log = structlog.get_logger()

_READ = "_brpop_read"


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
