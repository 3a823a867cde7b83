"""The processes an installation consists of, as programs for the supervisor."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from api_client.contract.settings import STATE_DIR, Settings
from worker.processes.cpus import usable_cpus
from worker.processes.exit_reports import ExitNotes
from worker.processes.program import SUPERVISED, Program

#: A worker process touches the file this variable names once it consumes; `turns worker` when all of them do, `turns
#: traces` again and again.
READY_VARIABLE = "HELIX_AGENT_READY_FILE"
_MEMORY = Path("/dev/shm")  # noqa: S108 - our own folder is made there


def state_dir(settings: Settings) -> Path:
    """The folder for what we keep under HELIX_ROOT; made if it is missing.

    Raises:
        OSError: it cannot be made or written.
    """
    directory = settings.root / STATE_DIR
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def marks_dir() -> Path:
    """Return where programs leave their marks: private, and in memory, so a sick disk does not look like a dead worker.

    Raises:
        OSError: there is no place for temporary files at all.
    """
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    directory = base / f"helix-turns-{os.geteuid()}"
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return directory
    return Path(tempfile.mkdtemp(prefix="helix-turns-"))  # somebody else has that name


def environ_of(settings: Settings, **more: str) -> dict[str, str]:
    """Our environment with exactly these settings, for a process we start."""
    kept = {k: v for k, v in os.environ.items() if k.startswith("HELIX_AGENT_") or not k.startswith("HELIX_")}
    kept.pop("REDIS_URL", None)
    return kept | settings.environ() | more


def shares(settings: Settings) -> list[Settings]:
    """The settings of each process of a worker: its slots are shared out among them.

    There are ``worker_processes`` of them, or one per CPU; never more than agents run at once.
    """
    number = min(settings.worker_processes or usable_cpus(), settings.run_slots)
    return [
        replace(
            settings,
            run_slots=_share(settings.run_slots, number, place),
            check_slots=max(1, _share(settings.check_slots, number, place)),
        )
        for place in range(number)
    ]


def _share(slots: int, number: int, place: int) -> int:
    return slots // number + (place < slots % number)


#: Tells containers apart that share a host's name and have the same process ids.
_START = "".join(secrets.choice("bcdfghjkmnpqrstvwxz") for _ in range(4))


def worker_command(share: Settings, number: int) -> list[str]:
    """One process of a worker, with its share of the slots. Its name is unique on this host."""
    # -P keeps the working directory, where agents may write, off the import path.
    return [
        *(sys.executable, "-P", "-m", "worker.celery_worker"),
        *("-c", str(share.run_slots), "-n", worker_name(number), "--loglevel", share.log_level),
    ]


def worker_name(number: int) -> str:
    """The name of this supervisor's worker of this number: in Flower, logs, pages and records, on every host."""
    return f"worker-{os.getpid()}-{_START}-{number}@{socket.gethostname()}"


def noting_exits(settings: Settings) -> Callable[[Program, int, int], None]:
    """Return what a supervisor calls when a program ended: the store hears of workers."""
    notes = ExitNotes(settings)

    def note(program: Program, pid: int, code: int) -> None:
        if program.worker:
            notes.note(program.worker, pid, code)

    return note


def workers(settings: Settings) -> list[Program]:
    """The processes of a worker. Each runs agents, and judges answers."""
    state, marks = state_dir(settings), marks_dir()
    started: list[Program] = []
    for number, share in enumerate(shares(settings), 1):
        ready = marks / f"worker-{os.getpid()}-{number}-{secrets.token_hex(4)}.ready"
        started.append(
            Program(
                name=f"worker-{number}",
                command=worker_command(share, number),
                environ=environ_of(share, **{READY_VARIABLE: str(ready), SUPERVISED: "yes"}),
                cwd=state,
                ready_file=ready,
                # A stalled worker takes its mark away; a frozen one renews it no more.
                stale_seconds=settings.stalled_seconds,
                grace_seconds=settings.shutdown_seconds + settings.kill_grace_seconds + 5.0,
                alongside=number > 1,
                worker=worker_name(number),
            )
        )
    return started


def web(settings: Settings) -> Program:
    """The relay; ready when it answers ``/healthz``, and started again when it answers nothing any more."""
    return Program(
        name="web",
        command=[sys.executable, "-P", "-c", "from worker.cli import main; main(['web'])"],
        environ=environ_of(settings),
        cwd=state_dir(settings),
        ready=lambda pid: answers(settings.web_host, settings.web_port, "/healthz") == http.HTTPStatus.OK,
        # Whatever it says: one that is full says so, and works.
        answers=lambda: answers(settings.web_host, settings.web_port, "/healthz") > 0,
        grace_seconds=10.0,
        alongside=True,
    )


def traces(settings: Settings) -> Program:
    """The sender of traces: whatever becomes of it, turns go on."""
    return Program(
        name="traces",
        command=[sys.executable, "-P", "-c", "from worker.cli import main; main(['traces'])"],
        environ=environ_of(settings),
        cwd=state_dir(settings),
        alongside=True,
    )


def flower(settings: Settings, password: str) -> Program:
    """Flower on loopback behind a password, with a history that outlives it, and nothing it could change."""
    options: Mapping[str, str] = {
        "FLOWER_ADDRESS": "127.0.0.1",
        "FLOWER_PORT": str(settings.flower_port),
        "FLOWER_BASIC_AUTH": f"turns:{password}",  # not on the command line, where every user could read it
        "FLOWER_READ_ONLY": "true",  # a revoke would be a lie: agents run in threads and turns have `turns cancel`
        "FLOWER_PERSISTENT": "true",
        "FLOWER_DB": str(state_dir(settings) / "flower"),
        "FLOWER_STATE_SAVE_INTERVAL": "5000",
        "FLOWER_MAX_TASKS": "20000",
        "FLOWER_TASKS_COLUMNS": "kwargs,name,state,result,worker,received,runtime,uuid",
    }
    return Program(
        name="flower",
        command=[sys.executable, "-P", "-m", "worker.cli.installation.flower"],
        environ=environ_of(settings, **options),
        cwd=state_dir(settings),
        ready=lambda pid: answers("127.0.0.1", settings.flower_port, "/healthcheck") > 0,
        alongside=True,
    )


def answers(host: str, port: int, path: str, *, seconds: float = 2.0) -> int:
    """The status an HTTP server answers with, 0 when it does not answer within ``seconds``."""
    connection = http.client.HTTPConnection("127.0.0.1" if host == "0.0.0.0" else host, port, timeout=seconds)  # noqa: S104
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
