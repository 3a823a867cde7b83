"""The doors of this worker process, as it sees them: a separate process serves them (``forwarder``).

So a model call goes on while this worker is frozen, as its agent does, and what passes by costs this process nothing.
Requests go to that process one at a time, by a socket that nobody else has. One that died is replaced; its doors are
not: their agents reach nothing more, and nobody knows how their calls ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import structlog

from worker.runners.guard import call_record
from worker.runners.guard.outbound import Outbound
from worker.runners.guard.processes import SOURCE_ROOT
from worker.runners.witnessed import Call, CallEnd, ObservedCalls

log = structlog.get_logger(__name__)

#: So long may a request take, and then the process to end, in seconds; one that takes longer is killed.
_PATIENCE, _TO_END = 30.0, 2.0
#: What of the environment that process has: where certificates, names and temporary files are.
_ENVIRONMENT = ("PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "LOCALDOMAIN", "RES_OPTIONS")
_UNKNOWN = Call(api="messages", end=CallEnd.UNKNOWN, word="the door is gone")


class Doors:
    """The process that serves the doors, while it lives. Used by many threads at once."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.gone = False
        self._lock = threading.Lock()
        ours, theirs = Pipe()
        kept = {name: value for name in _ENVIRONMENT if (value := os.environ.get(name))}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "worker.runners.guard.forwarder", str(theirs.fileno()), str(self.owner)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**kept, "PYTHONPATH": SOURCE_ROOT, "LANG": "C.UTF-8"},
                start_new_session=True,
                cwd="/",
            )
        self.pid = self._process.pid
        self._connection = ours

    def ask(self, name: str, *given: Any) -> Any:
        """The answer to a request. Raises ``OSError``: it cannot be carried out, or the process is gone."""
        with self._lock:
            if self.gone:
                raise ConnectionError("the doors' process has ended")
            try:
                self._connection.send((name, given))
                if not self._connection.poll(_PATIENCE):
                    raise TimeoutError("the doors' process hangs")
                done, answer = self._connection.recv()
            except (OSError, EOFError) as error:
                self._end()
                log.error("doors.died", pid=self.pid, exit_code=self._process.returncode, error=str(error))
                raise ConnectionError(f"the doors' process has ended: {error}") from error
        if not done:
            raise OSError(answer)
        return answer

    def close(self) -> None:
        """End it, and all doors with it."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self.gone = True
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_END)
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Door:
    """The door of one run: its address, a path or a URL, and what it saw."""

    address: str
    _doors: Doors
    _number: int
    _calls: Path | None

    def count(self) -> int:
        """As ``Record.count``. Raises ``OSError``: the door is gone."""
        return int(self._doors.ask("count", self._number))

    def failures(self) -> int:
        """Return how many of the last calls ended badly, one after the other; 0 where the door is gone."""
        with contextlib.suppress(OSError):
            return int(self._doors.ask("failures", self._number))
        return 0

    def seen(self, since: int = 0) -> ObservedCalls:
        """The calls that began after the first ``since``. Where the door is gone, nobody knows how they ended."""
        try:
            found = self._doors.ask("seen", self._number, since)
        except OSError:
            noted = call_record.read(self._calls, since) if self._calls else None
            return noted or ObservedCalls(calls=(_UNKNOWN,))
        return cast("ObservedCalls", found)


@contextlib.contextmanager
def door(outbound: Outbound, calls: Path | None, *, boxed: bool) -> Iterator[Door]:
    """A door for one run. It and all its connections go afterwards.

    Args:
        outbound: where it leads.
        calls: the file of its model calls, for who adopts the run; None for none.
        boxed: its address is the path of a socket; else a URL that nobody else knows, which leads to the service alone.

    Raises:
        OSError: it cannot be made.
    """
    try:
        doors = _shared()
        number, address = doors.ask("open", outbound, calls, boxed)
    except ConnectionError:  # it has just died
        doors = _shared()
        number, address = doors.ask("open", outbound, calls, boxed)
    try:
        yield Door(address, doors, number, calls)
    finally:
        with contextlib.suppress(OSError):  # the run's result is not lost for it
            doors.ask("close", number)


_lock = threading.Lock()
_current: list[Doors] = []


def _shared() -> Doors:
    """The doors of this process; their process is started when one is first needed."""
    with _lock:
        if not _current or _current[0].gone or _current[0].owner != os.getpid():
            _current[:] = [Doors()]
        return _current[0]
