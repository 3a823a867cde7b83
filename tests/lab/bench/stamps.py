"""Engine and client note when they pass the steps of a turn, by one clock. For ``tests.lab.bench.step_times``."""

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Names the folder for the stamps, a file for each process; without it nothing is stamped.
FOLDER = "BENCH_STAMPS"
#: Stamps written to the file at once: few writes, and none of them in most turns.
_AT_ONCE = 3000

_stamps: list[str] = []


def stamp(step: str) -> None:
    """Note that this process is at a step now."""
    _stamps.append(f"{time.perf_counter_ns()} {step}\n")
    if len(_stamps) >= _AT_ONCE:
        with Path(os.environ[FOLDER], str(os.getpid())).open("a", encoding="utf-8") as file:
            file.writelines(_stamps)
        _stamps.clear()


def stamped(owner: Any, name: str, begins: str = "", ends: str = "", of: Callable[..., str] = lambda *_: "") -> None:
    """Have a function or coroutine of ``owner`` stamped; ``of`` says of its arguments what is put before the names."""
    inner = getattr(owner, name)

    def mark(step: str, words: tuple[Any, ...]) -> None:
        if step:
            stamp(f"{of(*words)} {step}".strip())

    @functools.wraps(inner)
    def outer(*words: Any, **named: Any) -> Any:
        mark(begins, words)
        try:
            return inner(*words, **named)
        finally:
            mark(ends, words)

    @functools.wraps(inner)
    async def outer_async(*words: Any, **named: Any) -> Any:
        mark(begins, words)
        try:
            return await inner(*words, **named)
        finally:
            mark(ends, words)

    setattr(owner, name, outer_async if inspect.iscoroutinefunction(inner) else outer)


def stamp_engine() -> None:
    """Have the steps of this process stamped as those of a worker's engine."""
    from api_client.store.connection import _Pipeline
    from api_client.turns.record.ledger import Ledger
    from worker.celery.pool import TurnPool
    from worker.celery.transport import QueueOrder, TurnsChannel
    from worker.turns import service
    from worker.turns.agent_run import AgentRun
    from worker.turns.engine import Engine
    from worker.turns.loops.loop import Loop
    from worker.turns.service import TurnService

    stamped(TurnsChannel, "_brpop_read", "Celery thread: message can be read", "Celery thread: message handed on")
    stamped(QueueOrder, "consume", ends="Celery thread: next message asked for")
    stamped(TurnPool, "on_apply", "Celery thread: message decoded")
    stamped(Engine, "start_task", ends="Celery thread: loop woken")
    stamped(Loop, "_start_new", "loop: looks at what is new")
    stamped(TurnService, "carry_out_task", "loop: task begins", "loop: task ended")
    command = "loop: {}".format
    stamped(Ledger, "_send_command", "asked for", "read", of=lambda _, made: command(made.script or made.words[0]))
    stamped(Ledger, "_run_exchange", "loop: command asked for", "loop: command read")
    stamped(_Pipeline, "_flush_unsent", ends="loop: command sent")
    stamped(_Pipeline, "data_received", "loop: reply arrives")
    stamped(AgentRun, "run_agent", "loop: agent begins", "loop: agent ended")
    stamped(service, "validate_at_once", "loop: judging begins", "loop: judged")


def stamp_client() -> None:
    """Have the steps of this process stamped as those of the client."""
    from api_client.store import Store
    from api_client.turns.submitter import Submitter
    from tests.lab.bench.load.loop import Loop

    stamped(Submitter, "submit", "client: submit begins", "client: submit ended")
    stamped(Store, "_get_reply", "client: submit sent", "client: submit's reply read")
    stamped(Loop, "_event", of=lambda _, __, event: f"client: hears {event['kind']}", begins=" ")


def begin() -> None:
    """Have the steps of this process stamped, if it is a worker's engine or the client of ours."""
    if "worker.celery_worker" in sys.orig_argv:
        stamp_engine()
    elif "tests.lab.bench.turns.our_client" in sys.orig_argv:
        stamp_client()
