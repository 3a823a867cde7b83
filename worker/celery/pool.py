"""The pool of a worker: the engine's slots, as Celery's commands, autoscaling and Flower see them."""

from __future__ import annotations

import os
import time
from typing import Any

from celery.concurrency.base import BasePool
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.autoscale import Autoscaler

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from worker.celery.task_story import task_of


class TurnPool(BasePool):
    """Hands tasks to the engine of ``app``, which carries them out in its own loop."""

    def on_start(self) -> None:
        """Give the engine as many slots as the worker was started with."""
        self.app.engine.slots.resize(RUN_QUEUE, self.limit)

    def register_with_event_loop(self, loop: Any) -> None:
        """Let the engine wake the worker's loop; called with each new connection."""
        self.app.engine.receiver.hub = loop

    def on_apply(self, target: Any, args: Any, kwargs: Any, accept_callback: Any = None, **_: Any) -> None:
        """Hand a task to the engine. Raises ``InvalidTaskError``: it is not a link of a turn."""
        request = state.requests[args[1]]
        try:
            carried_out = self.app.engine.take(task_of(request.request_dict, request.message.payload))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            state.task_ready(request)
            raise InvalidTaskError(f"not a message for the engine: {error!r}") from error
        if carried_out:
            accept_callback(os.getpid(), time.monotonic())
        else:
            state.task_ready(request)

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing to the process, in which other turns run: ``task_revoked`` cancels the turn."""

    def on_close(self) -> None:
        """Have the engine hand over what has not started, as after SIGTERM."""
        self.app.engine.shut_down()

    def on_stop(self) -> None:
        """Wait for the turns of this process, while events can still be sent."""
        self.app.engine.close()

    def grow(self, n: int = 1) -> None:
        """Add slots."""
        self.limit += n
        self.app.engine.slots.resize(RUN_QUEUE, self.limit)

    def shrink(self, n: int = 1) -> None:
        """Take slots away; turns that run go on. Raises ``ValueError``: none would be left."""
        if n >= self.limit:
            raise ValueError("a worker keeps at least one slot; to take no new turns: `turns workers quiet`")
        self.grow(-n)

    @property
    def info(self) -> dict[str, Any]:
        """What ``celery inspect stats`` and Flower's Pool tab show."""
        slots = self.app.engine.slots
        seen = {"agents": slots.total(RUN_QUEUE), "judges": slots.total(CHECK_QUEUE), "busy": slots.busy}
        return {**super().info, **seen}


class TurnAutoscaler(Autoscaler):
    """Keeps one slot free, up to the most: a worker takes no message without a free slot, so none waits in it."""

    @property
    def qty(self) -> int:
        """The slots that are needed now."""
        return len(state.reserved_requests) + 1
