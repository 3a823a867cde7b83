"""The worker pool, which runs tasks in the engine and lets Celery's commands resize the engine's slots."""

from __future__ import annotations

import os
import time
from typing import Any

from celery.concurrency.base import BasePool
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.autoscale import Autoscaler

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from worker.celery.task_events import parse_task


class TurnPool(BasePool):
    """A Celery worker pool that runs tasks in the engine's event loop instead of in child processes."""

    def on_start(self) -> None:
        """Set the engine's number of agent slots to the worker's concurrency."""
        self.app.engine.slots.set_limit(RUN_QUEUE, self.limit)

    def register_with_event_loop(self, loop: Any) -> None:
        """Give the engine access to the worker's event loop. Celery calls this for each new connection."""
        self.app.engine.bridge.hub = loop

    def on_apply(self, target: Any, args: Any, kwargs: Any, accept_callback: Any = None, **_: Any) -> None:
        """Start the task of a received message in the engine. Raises ``InvalidTaskError``."""
        request = state.requests[args[1]]
        try:
            started = self.app.engine.start_task(parse_task(request.request_dict, request.message.payload))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            state.task_ready(request)
            raise InvalidTaskError(f"not a message for the engine: {error!r}") from error
        if started:
            accept_callback(os.getpid(), time.monotonic())
        else:
            state.task_ready(request)

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing, because other turns run in this process. The ``task_revoked`` signal cancels the turn instead."""

    def on_close(self) -> None:
        """Start shutting down the engine, as SIGTERM does."""
        self.app.engine.shut_down()

    def on_stop(self) -> None:
        """Wait until the engine has stopped, so that the last task events are sent."""
        self.app.engine.close()

    def grow(self, n: int = 1) -> None:
        """Add ``n`` agent slots, as requested by ``celery control pool_grow``, or remove them if ``n`` is negative.

        Running turns continue. Raises ``ValueError`` if no slot would be left.
        """
        if self.limit + n < 1:
            raise ValueError("a worker keeps at least one slot; to take no new turns: `turns worker quiet`")
        self.limit += n
        self.app.engine.slots.set_limit(RUN_QUEUE, self.limit)

    def shrink(self, n: int = 1) -> None:
        """Remove ``n`` agent slots. Running turns continue. Raises ``ValueError`` if no slot would be left."""
        self.grow(-n)

    @property
    def info(self) -> dict[str, Any]:
        """Return the figures that ``celery inspect stats`` and Flower's Pool tab show."""
        slots = self.app.engine.slots
        return {
            **super().info,
            "agent-slots": slots.count_slots(RUN_QUEUE),
            "validation-slots": slots.count_slots(CHECK_QUEUE),
            "busy-slots": slots.busy,
        }


class TurnAutoscaler(Autoscaler):
    """An autoscaler that always keeps one slot free, because a full worker would not receive the next message."""

    @property
    def qty(self) -> int:
        """Return how many slots the worker needs: one more than the number of received tasks."""
        return len(state.reserved_requests) + 1
