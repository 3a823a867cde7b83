"""The processes of an installation, described as programs for the supervisor."""

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
from dataclasses import dataclass, replace
from pathlib import Path

from api_client.contract.settings import STATE_DIR, Settings
from worker.processes.cpus import usable_cpus
from worker.processes.exit_reports import ExitReporter
from worker.processes.program import CHECK_SLOTS_VARIABLE, SUPERVISED, Program

#: Environment variable with the file that a program touches while it works.
READY_VARIABLE = "HELIX_AGENT_READY_FILE"
#: Answers that a worker validates at the same time, over all its processes.
CHECK_SLOTS = 2
#: The command line of this Python, for processes of their own.
TURNS = (sys.executable, "-P", "-c", "from worker.cli import main; main()")
_MEMORY = Path("/dev/shm")  # noqa: S108 - our own folder is made there


def ensure_state_dir(settings: Settings) -> Path:
    """Return the state folder under HELIX_ROOT, and create it if it is missing. Raises ``OSError``."""
    directory = settings.root / STATE_DIR
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def ensure_ready_dir() -> Path:
    """Return a private folder in memory for the files with which programs report that they are ready.

    Raises ``OSError``.
    """
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    directory = base / f"helix-turns-{os.geteuid()}"
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return directory
    return Path(tempfile.mkdtemp(prefix="helix-turns-"))  # somebody else has that name


def build_environ(settings: Settings, **more: str) -> dict[str, str]:
    """Return this process's environment variables for a new process, with ``settings`` in place of its own settings."""
    kept = {k: v for k, v in os.environ.items() if k.startswith("HELIX_AGENT_") or not k.startswith("HELIX_")}
    kept.pop("REDIS_URL", None)
    return kept | settings.to_environment() | more


@dataclass(frozen=True, slots=True)
class ProcessSlots:
    """The slots of one worker process for running agents and for validating answers."""

    run_slots: int
    check_slots: int


def share_slots(settings: Settings, processes: int | None = None) -> list[ProcessSlots]:
    """Distribute a worker's slots among its processes, by default one per CPU, and return each process's share."""
    number = min(processes or usable_cpus(), settings.run_slots)
    return [
        ProcessSlots(_slot_share(settings.run_slots, number, place), max(1, _slot_share(CHECK_SLOTS, number, place)))
        for place in range(number)
    ]


def _slot_share(slots: int, number: int, place: int) -> int:
    return slots // number + (place < slots % number)


#: Distinguishes containers with the same host name and process ids.
_START = "".join(secrets.choice("bcdfghjkmnpqrstvwxz") for _ in range(4))


def worker_command(run_slots: int, number: int) -> list[str]:
    """Return the command line of worker process ``number``, which runs up to ``run_slots`` agents."""
    # -P keeps the working directory, where agents may write, off the import path.
    return [
        *(sys.executable, "-P", "-m", "worker.celery_worker"),
        *("-c", str(run_slots), "-n", worker_name(number), "--loglevel", "info"),
    ]


def worker_name(number: int) -> str:
    """Return the unique name of worker process ``number``, as used in Flower, logs, pages and records."""
    return f"worker-{os.getpid()}-{_START}-{number}@{socket.gethostname()}"


def build_exit_handler(settings: Settings) -> Callable[[Program, int, int], None]:
    """Build a supervisor callback that reports the exits of worker processes to the store."""
    notes = ExitReporter(settings)

    def note(program: Program, pid: int, code: int) -> None:
        if program.worker:
            notes.report_exit(program.worker, pid, code)

    return note


def worker_programs(settings: Settings, processes: int | None = None) -> list[Program]:
    """Return the programs for a worker's processes, by default one process per CPU."""
    state, marks = ensure_state_dir(settings), ensure_ready_dir()
    started: list[Program] = []
    for number, share in enumerate(share_slots(settings, processes), 1):
        ready = marks / f"worker-{os.getpid()}-{number}-{secrets.token_hex(4)}.ready"
        slots = {CHECK_SLOTS_VARIABLE: str(share.check_slots)}
        started.append(
            Program(
                name=f"worker-{number}",
                command=worker_command(share.run_slots, number),
                environ=build_environ(
                    replace(settings, run_slots=share.run_slots),
                    **{READY_VARIABLE: str(ready), SUPERVISED: "yes"},
                    **slots,
                ),
                cwd=state,
                ready_file=ready,
                # A stalled worker removes its ready file; a frozen one no longer touches it.
                stale_seconds=settings.stalled_seconds,
                grace_seconds=settings.shutdown_seconds + settings.kill_grace_seconds + 5.0,
                alongside=number > 1,
                worker=worker_name(number),
            )
        )
    return started


def web_program(settings: Settings, host: str, port: int) -> Program:
    """Return the program that runs the web relay. The supervisor restarts the relay if it stops answering."""
    return Program(
        name="web",
        command=[*TURNS, "run", "relay", "--host", host, "--port", str(port)],
        environ=build_environ(settings),
        cwd=ensure_state_dir(settings),
        ready=lambda pid: fetch_status(host, port, "/healthz") == http.HTTPStatus.OK,
        answers=lambda: fetch_status(host, port, "/healthz") > 0,
        grace_seconds=10.0,
        alongside=True,
    )


def traces_program(settings: Settings) -> Program:
    return Program(
        name="traces",
        command=[*TURNS, "run", "traces"],
        environ=build_environ(settings),
        cwd=ensure_state_dir(settings),
        alongside=True,
    )


def flower_program(settings: Settings, port: int, password: str) -> Program:
    """Return the program that runs Flower on the loopback address, protected by a password."""
    options: Mapping[str, str] = {
        "FLOWER_ADDRESS": "127.0.0.1",
        "FLOWER_PORT": str(port),
        "FLOWER_BASIC_AUTH": f"turns:{password}",  # not on the command line, which every user can read
        "FLOWER_PERSISTENT": "true",
        "FLOWER_DB": str(ensure_state_dir(settings) / "flower"),
        "FLOWER_STATE_SAVE_INTERVAL": "5000",
        "FLOWER_MAX_TASKS": "20000",
        "FLOWER_TASKS_COLUMNS": "kwargs,name,state,result,worker,received,runtime,uuid",
    }
    return Program(
        name="flower",
        command=[sys.executable, "-P", "-m", "worker.cli.installation.flower"],
        environ=build_environ(settings, **options),
        cwd=ensure_state_dir(settings),
        ready=lambda pid: fetch_status("127.0.0.1", port, "/healthcheck") > 0,
        alongside=True,
    )


def fetch_status(host: str, port: int, path: str, *, seconds: float = 2.0) -> int:
    """Request a path from an HTTP server and return the status code, or 0 if no answer comes in time."""
    connection = http.client.HTTPConnection("127.0.0.1" if host == "0.0.0.0" else host, port, timeout=seconds)  # noqa: S104
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
