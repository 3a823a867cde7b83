"""A child process that calls validators, and can be ended while it does."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from worker.enforcement.external.services import SpendingCount, spend
from worker.enforcement.isolation.memory import limited
from worker.enforcement.validators import ResponseValidator

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: After so many overruns a validator is not called again: each of them took its whole time.
MOST_OVERRUNS = 3
#: The kernel ends a child whose parent is gone so many seconds after the time limit.
_GRACE = 5.0


class NotJudged(Exception):
    """A validator raised, overran, or took its process down; the message says which."""


class Child:
    """One child, forked when it is first needed: it has the validators as they are. Used by many threads, one at once.

    Args:
        validators: whose methods are called.
        seconds: time for one call. memory_mb: what a call may take on top of what the process has, in MiB.
    """

    def __init__(self, validators: Sequence[ResponseValidator], seconds: float, memory_mb: int) -> None:
        self._validators, self._seconds, self._memory_mb = validators, seconds, memory_mb
        self._overran = [0] * len(validators)
        self._pid = 0
        self._pipe: Connection | None = None
        self._closed = False
        self._lock = threading.Lock()

    def call(self, place: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """The result of ``validators[place].method(*arguments)``.

        Raises:
            NotJudged: it raised, took longer than its time, or took the child down. The next call has a new child.
        """
        seconds = self._seconds + self._validators[place].patience
        with self._lock:
            if self._closed or self._overran[place] >= MOST_OVERRUNS:
                raise NotJudged(f"took longer than {seconds:g} s {MOST_OVERRUNS} times")
            try:
                pipe = self._asked((place, method, arguments, seconds))
                if not pipe.poll(seconds):
                    self._overran[place] += 1
                    raise NotJudged(f"took longer than {seconds:g} s")
                result, problem, spent = pipe.recv()
            except (EOFError, OSError):
                self._end()
                raise NotJudged("took its process down") from None
            except NotJudged:
                self._end()
                raise
        spend(spent)
        if problem:
            raise NotJudged(problem)
        return result

    def close(self) -> None:
        """End the child, whatever it does; a call that waits for it raises."""
        self._closed = True
        self._kill()
        with self._lock:
            self._end()

    def _asked(self, call: tuple[Any, ...]) -> Connection:
        """The pipe to a child that works on a call. What cannot be sent is handed over by the fork itself."""
        if self._pipe is None:
            return self._start(call)
        try:
            sent = pickle.dumps(call)
        except (TypeError, AttributeError, pickle.PicklingError):
            self._end()
            return self._start(call)
        self._pipe.send_bytes(sent)
        return self._pipe

    def _start(self, call: tuple[Any, ...]) -> Connection:
        from multiprocessing import Pipe  # most processes never need it

        ours, theirs = Pipe()
        with warnings.catch_warnings():
            # Python warns of locks that other threads hold: a child that waits for one is ended by its time limit.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            try:
                ours.close()
                self._serve(theirs, call)
            finally:
                os._exit(0)
        theirs.close()
        self._pid, self._pipe = pid, ours
        return ours

    def _end(self) -> None:
        if self._pipe is None:
            return
        self._pipe.close()
        self._kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._pid, self._pipe = 0, None

    def _kill(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _serve(self, pipe: Connection, call: tuple[Any, ...]) -> None:
        """The child: answer calls until the parent closes the pipe."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(EOFError, OSError):
            while True:
                place, method, arguments, seconds = call
                signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
                answer = self._answer(place, method, arguments)
                signal.setitimer(signal.ITIMER_REAL, 0)
                try:
                    pipe.send(answer)
                except (TypeError, AttributeError, pickle.PicklingError) as error:  # its result cannot be sent
                    pipe.send((None, f"{type(error).__name__}: {error}", answer[2]))
                call = pipe.recv()

    def _answer(self, place: int, method: str, arguments: tuple[Any, ...]) -> tuple[Any, str, Any]:
        with SpendingCount() as counted:
            try:
                with limited(self._memory_mb):
                    result = getattr(self._validators[place], method)(*arguments)
            except (Exception, SystemExit) as error:
                return None, f"{type(error).__name__}: {error}", counted.spent
        return result, "", counted.spent
