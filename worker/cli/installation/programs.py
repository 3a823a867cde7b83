"""Commands that run one program in the foreground: ``worker``, ``web``, ``broker``."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from api_client.contract.issues import HelixError, SettingsError, StoreUnavailable
from api_client.contract.settings import Settings, load, masked, require_store
from worker.cli.terminal import json_option, number_of, write_said
from worker.processes import lean, programs
from worker.processes.supervisor import NotReady
from worker.runners.claude.cli_program import missing_programs

# Checks before an installation or a worker starts: its store and broker, and the programs of its agents.

#: Between two questions to a server that does not answer, in seconds.
_PAUSE_SECONDS = 0.3
#: Refusals that no waiting ends.
_FOR_GOOD = {"NOAUTH", "WRONGPASS"}


def warn(settings: Settings) -> None:
    """Tell on standard error what the settings say that sets nothing any more."""
    for each in settings.warnings:
        click.echo(f"turns: warning: {each}", err=True)


def require_store_of(settings: Settings, stopping: threading.Event | None = None) -> None:
    """Wait for store and broker, then refuse to work with another number of shards than the store's.

    Returns early once ``stopping`` is set.

    Raises:
        SettingsError: as ``require_shards``. StoreUnavailable: as ``await_server``.
    """
    stopping = stopping or threading.Event()
    await_server("store", settings, stopping)
    if settings.broker_url != settings.store_url:
        await_server("broker", replace(settings, store_url=settings.broker_url), stopping)
    from api_client.store.connecting import require_shards

    if not stopping.is_set():
        require_shards(settings)


def await_server(name: str, settings: Settings, stopping: threading.Event) -> None:
    """Wait until the server answers, and say so where it does not at once. One that loads its data does answer.

    Raises:
        StoreUnavailable: it does not accept the password, or did not answer for ``store_wait_seconds``.
    """
    from redis.exceptions import RedisError

    from api_client.contract.error_codes import refusal_of
    from api_client.store.connecting import connect

    where, until, announced = masked(settings.store_url), time.monotonic() + settings.store_wait_seconds, False
    with connect(settings, answer_seconds=2.0, resends=0) as server:
        while not stopping.is_set():
            try:
                server.ping()
                require_version(name, server)
                return
            except (RedisError, OSError) as error:
                refusal = refusal_of(error)
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
    """Refuse a server that is too old for our commands; one that does not tell its version is taken.

    Raises:
        SettingsError: as ``turns doctor`` says it.
    """
    from redis.exceptions import ResponseError

    from worker.cli.checks.store import version

    try:
        found = version(name, server.info("server"))
    except ResponseError:  # this user may not ask
        return
    if found.state == "wrong":
        raise SettingsError([f"the {name}: {found.message}; {found.fix}"])


@contextlib.contextmanager
def store_named(settings: Settings) -> Iterator[None]:
    """Replace the error where a worker in the block was never ready because of the store.

    Raises:
        SettingsError, StoreUnavailable: as ``require_store_of``. NotReady: it was not because of the store.
    """
    try:
        yield
    except NotReady:
        require_store_of(replace(settings, store_wait_seconds=0.0))
        raise


class _Gone(threading.Event):
    """Set once the process that made it has ended: for its copies."""

    def __init__(self) -> None:
        super().__init__()
        self._of = os.getpid()

    def is_set(self) -> bool:
        return os.getppid() != self._of


def copied(work: Callable[[threading.Event], None]) -> Callable[[threading.Event], None]:
    """Begin ``work`` in a copy of this process, so that what it imports stays out of this one, which is to stay small.

    Returns a function that waits for its end, or ends it once the event is set. It raises the error of the work.
    """
    gone, (reading, writing) = _Gone(), os.pipe()
    copy = os.fork()
    if not copy:
        try:
            work(gone)
        except Exception as error:
            os.write(writing, pickle.dumps(error))
        finally:
            os._exit(0)
    os.close(writing)

    def wait(stops: threading.Event) -> None:
        while not stops.is_set() and not select.select([reading], [], [], _PAUSE_SECONDS)[0]:
            pass
        if stops.is_set():
            os.kill(copy, signal.SIGKILL)
        with os.fdopen(reading, "rb") as said:
            problem = said.read()
        os.waitpid(copy, 0)
        if problem and not stops.is_set():
            raise pickle.loads(problem)  # noqa: S301 - our own

    return wait


# ``turns worker``: the processes of a worker under a supervisor, or one process in the foreground.


def capacity(settings: Settings) -> str:
    """Return what a worker with these settings can do at once."""
    shares = programs.shares(settings)
    runs, checks = sum(share.run_slots for share in shares), sum(share.check_slots for share in shares)
    processes = "1 process" if len(shares) == 1 else f"{len(shares)} processes"
    return f"{number_of(runs, 'agent')} and {number_of(checks, 'judge')} at once, in {processes}"


@click.command()
@click.option("--processes", type=click.IntRange(1, 256), help="How many processes; else one per CPU that it may use.")
@click.option("--foreground", is_flag=True, help="Run a single process in the foreground, unsupervised.")
def worker(processes: int | None, foreground: bool) -> None:
    """Run a worker: processes that run agents and judge answers, one for each CPU by default.

    Several may run on one host or on many; they share the broker, and HELIX_ROOT must be the same folder for all.
    A process that dies is started again. SIGTERM or Ctrl-C ends all; a second Ctrl-C does so at once.
    """
    lean.leave_out_unused()
    settings = require_store(load())
    from worker.backup.restore_mark import require_whole

    require_whole(settings.root)
    warn(settings)
    if settings.budgets:  # else nothing of the store's client is loaded into this process
        from api_client.api_keys import require_budgets

        require_budgets(settings)
    if missing := missing_programs(settings):
        raise SettingsError(missing)
    if processes:
        settings = replace(settings, worker_processes=processes)
    state = programs.state_dir(settings)
    if foreground:
        require_store_of(settings)
        command = programs.worker_command(settings, 1)
        os.chdir(state)
        os.execve(command[0], command, programs.environ_of(settings))  # noqa: S606 - no shell is meant

    from worker.logs import configure_logging
    from worker.processes.supervisor import Supervisor

    look_at_the_store = copied(lambda stops: require_store_of(settings, stops))  # while the processes start

    def say_what_it_waits_for() -> None:
        """In a process of the files that are there then, maybe newer ones; this one stays small meanwhile."""
        asks = "from worker.cli.installation.workers import say; say()"
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # a machine in need: it ends all the same
            subprocess.run(
                [sys.executable, "-P", "-c", asks], env=programs.environ_of(settings), check=False, timeout=10
            )

    def show() -> None:
        """For a liveness check: the file is touched while all take messages (compose/compose.yaml asks for it)."""
        if ready := os.environ.get(programs.READY_VARIABLE):
            with contextlib.suppress(OSError):  # a disk that takes no writes does not end what else goes on
                Path(ready).touch()

    configure_logging(settings)
    started = programs.workers(settings)
    try:
        with store_named(settings):
            Supervisor(started, show=show, on_exit=programs.noting_exits(settings)).run(
                lambda: click.echo(f"worker ready: {capacity(settings)}"),
                say_what_it_waits_for,
                meanwhile=look_at_the_store,
            )
    finally:
        for program in started:
            if program.ready_file:
                program.ready_file.unlink(missing_ok=True)


# ``turns broker``: the embedded broker alone.


@click.command()
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False), help="Where its data is kept.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Listen on this loopback port too.")
@json_option
def broker(directory: Path | None, port: int, as_json: bool) -> None:
    """Run the embedded broker in the foreground; prints the REDIS_URL for the others, then becomes the server.

    Its data is in HELIX_ROOT/.helix/broker, or in --directory, and is found again at the next start. It listens on a
    unix socket only this user can open; every user of this machine can connect to a --port.
    """
    from worker.processes.broker import BrokerError, EmbeddedBroker

    settings = load()
    server = EmbeddedBroker(
        directory or programs.state_dir(settings) / "broker", durability=settings.durability, port=port
    )
    handle = os.open(server.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BrokerError(f"a broker already runs on {server.directory}") from error
    os.set_inheritable(handle, True)
    found = {"redis_url": server.url, "server": str(server.server.path), "version": server.server.version}
    write_said(as_json, found, f"REDIS_URL={server.url}")
    command = server.command()
    os.execv(command[0], command)  # noqa: S606 - no shell is meant


# Check that an address can be listened on, before anything is started on it.


class CannotStart(HelixError):
    """Something stands in the way; the message says what to do about it."""

    code = "cannot_start"


def free_port(host: str, port: int) -> int:
    """The port of the relay if it is free, or a free one for 0.

    Raises:
        CannotStart: somebody listens there, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            ways = "--port names another; 0: a free one"
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                ways = "--host must be an address of this machine"
            raise CannotStart(f"cannot listen on {host}:{port} ({error.strerror}); {ways}") from error
        return int(probe.getsockname()[1])


# ``turns web``: the relay.


def listening(settings: Settings, host: str | None, port: int | None) -> Settings:
    """The settings of a relay that listens where the options say."""
    return replace(
        settings,
        web_host=settings.web_host if host is None else host,
        web_port=settings.web_port if port is None else port,
    )


@click.command()
@click.option("--host", help="Address to listen on; 127.0.0.1 if none.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 8765 if none.")
def web(host: str | None, port: int | None) -> None:
    """Run the OpenAI-compatible relay in the foreground."""
    settings = listening(require_store(load()), host, port)
    from api_client.store.connecting import require_shards
    from api_client.web.app import serve
    from worker.backup.restore_mark import require_whole
    from worker.cli.turns.turn import packed
    from worker.logs import configure_logging

    configure_logging(settings)
    require_whole(settings.root)
    warn(settings)
    try:
        free_port(settings.web_host, settings.web_port)
    except CannotStart:
        configure_logging(replace(settings, log_level="error"))  # one line says why it does not start
        require_shards(settings)
        raise
    require_shards(settings)
    serve(settings, partial(packed, settings))
