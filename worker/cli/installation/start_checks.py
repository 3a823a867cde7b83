"""Checks of store, broker and agents' programs before an installation or worker starts."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.contract.settings import Settings, mask_password
from worker.processes.supervisor import NotReady

_PAUSE_SECONDS = 0.3
_FOR_GOOD = {"NOAUTH", "WRONGPASS"}


def await_store(settings: Settings, stopping: threading.Event | None = None) -> None:
    """Wait until store and broker answer, or until ``stopping`` is set. Refuse a store that was only partly restored.

    Raises ``SettingsError`` if a server is too old or the store half restored, ``StoreUnavailable`` if a server refuses
    the password or did not answer in time.
    """
    stopping = stopping or threading.Event()
    await_server("store", settings, stopping)
    if settings.broker_url != settings.store_url:
        await_server("broker", replace(settings, store_url=settings.broker_url), stopping)
    from api_client.store.unfinished_restore import refuse_unfinished_restore

    if not stopping.is_set():
        refuse_unfinished_restore(settings)


def await_server(name: str, settings: Settings, stopping: threading.Event) -> None:
    """Wait until a server answers, and tell the user about the wait.

    A server that refuses commands, for example while loading its data, has answered. Raises ``StoreUnavailable`` after
    ``store_wait_seconds`` or for a wrong password, ``SettingsError`` if the server is too old.
    """
    from redis.exceptions import RedisError

    from api_client.contract.store_refusals import find_refusal
    from api_client.store.connecting import open_blocking_store

    where, until, announced = mask_password(settings.store_url), time.monotonic() + settings.store_wait_seconds, False
    with open_blocking_store(settings, answer_seconds=2.0, resends=0) as server:
        while not stopping.is_set():
            try:
                server.ping()
                require_version(name, server)
                return
            except (RedisError, OSError) as error:
                refusal = find_refusal(error)
                if refusal and refusal.word in _FOR_GOOD:
                    raise StoreUnavailable(str(error), refusal) from error
                reason = str(error) or type(error).__name__
                if "HELLO" in reason:
                    fix = "the server, or a proxy before it, must speak RESP3 (the command HELLO): Redis 7.0 or newer"
                    raise SettingsError([f"the {name} at {where}: {reason}; {fix}"]) from error
                if not announced:
                    said = refusal.message if refusal else f"it does not answer ({reason})"
                    click.echo(f"waiting for the {name} at {where}: {said}", err=True)
                    announced = True
                if refusal:
                    return
                if time.monotonic() > until:
                    waited = f"waited {settings.store_wait_seconds:g} s for the {name} at {where}"
                    raise StoreUnavailable(f"{waited} ({reason}); start it, or correct REDIS_URL") from error
            stopping.wait(_PAUSE_SECONDS)


def require_version(name: str, server: Any) -> None:
    """Raise ``SettingsError`` if a server is too old. Accept a server that does not report its version."""
    from redis.exceptions import ResponseError

    from worker.cli.checks.server_version import check_version

    try:
        found = check_version(name, server.info("server"))
    except ResponseError:  # the user may not read INFO
        return
    if found.state == "wrong":
        raise SettingsError([f"the {name}: {found.message}; {found.fix}"])


@contextlib.contextmanager
def blame_store(settings: Settings) -> Iterator[None]:
    """Run a block. If the block raises ``NotReady`` because of the store, raise the store's own error instead."""
    try:
        yield
    except NotReady:
        await_store(replace(settings, store_wait_seconds=0.0))
        raise


class _ParentExit(threading.Event):
    """An event for a forked child that is set once the parent process has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._of = os.getpid()

    def is_set(self) -> bool:
        return os.getppid() != self._of


def run_in_fork(work: Callable[[threading.Event], None]) -> Callable[[threading.Event], None]:
    """Start ``work`` in a forked process, and return a function that waits until the work ends.

    The returned function kills the process when its event is set, and raises the error of the work.
    """
    gone, (reading, writing) = _ParentExit(), os.pipe()
    copy = os.fork()
    if not copy:
        try:
            work(gone)
        except Exception as error:
            os.write(writing, pickle.dumps(error))
        finally:
            os._exit(0)
    os.close(writing)

    def wait_for_fork(stops: threading.Event) -> None:
        while not stops.is_set() and not select.select([reading], [], [], _PAUSE_SECONDS)[0]:
            pass
        if stops.is_set():
            os.kill(copy, signal.SIGKILL)
        with os.fdopen(reading, "rb") as said:
            problem = said.read()
        os.waitpid(copy, 0)
        if problem and not stops.is_set():
            raise pickle.loads(problem)  # noqa: S301 - our own

    return wait_for_fork
