"""Client of the model proxy process, which serves model calls even while this worker is frozen."""

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

from worker.runners.observed_calls import ModelCall, ModelCallEnd, ObservedCalls
from worker.runners.sandbox import call_log
from worker.runners.sandbox.destinations import AllowedDestinations
from worker.runners.sandbox.guard_client import SOURCE_ROOT

log = structlog.get_logger(__name__)

#: Time limits for a request, and for the process to exit before it is killed, in seconds.
_PATIENCE, _TO_END = 30.0, 2.0
#: Environment variables passed to the process.
_ENVIRONMENT = ("PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "LOCALDOMAIN", "RES_OPTIONS")
_UNKNOWN = ModelCall(api="messages", end=ModelCallEnd.UNKNOWN, word="the model proxy is gone")


class ProxyProcess:
    """The connection to the process that runs the model proxies of a worker. Thread-safe."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.gone = False
        self._lock = threading.Lock()
        ours, theirs = Pipe()
        kept = {name: value for name in _ENVIRONMENT if (value := os.environ.get(name))}
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "worker.runners.sandbox.model_proxy",
                    str(theirs.fileno()),
                    str(self.owner),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**kept, "PYTHONPATH": SOURCE_ROOT, "LANG": "C.UTF-8"},
                start_new_session=True,
                cwd="/",
            )
        self.pid = self._process.pid
        self._connection = ours

    def send_request(self, name: str, *given: Any) -> Any:
        """Call the method ``name`` in the proxy process and return its result. Raises ``OSError``."""
        with self._lock:
            if self.gone:
                raise ConnectionError("the model proxies' process has ended")
            try:
                self._connection.send((name, given))
                if not self._connection.poll(_PATIENCE):
                    raise TimeoutError("the model proxies' process hangs")
                done, answer = self._connection.recv()
            except (OSError, EOFError) as error:
                self._end_process()
                log.error("doors.died", pid=self.pid, exit_code=self._process.returncode, error=str(error))
                raise ConnectionError(f"the model proxies' process has ended: {error}") from error
        if not done:
            raise OSError(answer)
        return answer

    def close(self) -> None:
        """End the proxy process together with all its model proxies."""
        with self._lock:
            self._end_process()

    def _end_process(self) -> None:
        self.gone = True
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_END)
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class ModelProxy:
    """The model proxy of one run. Its address is the path of a socket or a URL."""

    address: str
    _doors: ProxyProcess
    _number: int
    _calls: Path | None

    def count_calls(self) -> int:
        """Return how many model calls of the run have begun. Raises ``OSError`` if the proxy is gone."""
        return int(self._doors.send_request("count", self._number))

    def count_failures(self) -> int:
        """Return how many model calls have failed in a row up to now."""
        with contextlib.suppress(OSError):
            return int(self._doors.send_request("failures", self._number))
        return 0

    def observed_calls(self, since: int = 0) -> ObservedCalls:
        """Return the run's model calls without the first ``since``, from the call log if the proxy is gone."""
        try:
            found = self._doors.send_request("seen", self._number, since)
        except OSError:
            noted = call_log.read_call_log(self._calls, since) if self._calls else None
            return noted or ObservedCalls(calls=(_UNKNOWN,))
        return cast("ObservedCalls", found)


@contextlib.contextmanager
def open_proxy(outbound: AllowedDestinations, calls: Path | None, *, sandboxed: bool) -> Iterator[ModelProxy]:
    """Open the model proxy of one run, and close it with its connections at the end of the ``with`` block.

    ``calls`` is the file of the call log. ``sandboxed`` gives a unix socket; otherwise the address is a secret loopback
    URL. Raises ``OSError``.
    """
    try:
        doors = _shared_process()
        number, address = doors.send_request("open", outbound, calls, sandboxed)
    except ConnectionError:  # the process has just died
        doors = _shared_process()
        number, address = doors.send_request("open", outbound, calls, sandboxed)
    try:
        yield ModelProxy(address, doors, number, calls)
    finally:
        with contextlib.suppress(OSError):  # the run's result must not be lost because of this
            doors.send_request("close", number)


_lock = threading.Lock()
_current: list[ProxyProcess] = []


def find_proxy_process() -> int:
    """Return the id of the process that runs this process's model proxies, or 0 if none was started."""
    return _current[0].pid if _current else 0


def _shared_process() -> ProxyProcess:
    with _lock:
        if not _current or _current[0].gone or _current[0].owner != os.getpid():
            _current[:] = [ProxyProcess()]
        return _current[0]
