"""Validators isolated in a child process: a validator that hangs, crashes or eats memory fails alone."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.printed_output import divert_output
from worker.enforcement.process_family import adopt_orphans, kill_family, reap_children
from worker.enforcement.validators import ResponseValidator, StepMarkerValidator
from worker.enforcement.validators.services import measure_cost, record_cost

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: Limits of a validator's call: seconds, and MiB of memory.
SECONDS, MEMORY_MB = 10.0, 1024
#: Most characters of all texts for which bounded validators run in this process.
MOST_CHARACTERS = 64 * 1024


def runs_in_place(validator: ResponseValidator, texts: Collection[str]) -> bool:
    """Return True if the validator may check these texts in this process, without a child process."""
    return _stays_in_process(validator) or (not are_long(texts) and validator.takes_bounded_time(texts))


def are_long(texts: Collection[str]) -> bool:
    """Return True if texts are so long that a time limit is needed to read them."""
    return sum(map(len, texts)) > MOST_CHARACTERS


def _stays_in_process(validator: ResponseValidator) -> bool:
    return isinstance(validator, StepMarkerValidator) or bool(getattr(validator, "needs_services", False))


@contextmanager
def isolate_validators(
    validators: Sequence[ResponseValidator], *, seconds: float | None = None, memory_mb: int | None = None
) -> Iterator[IsolatedValidators]:
    """Yield the validators, whose risky calls run in a child process until the block ends.

    Risky are long texts and validators without a known bound. ``seconds`` and ``memory_mb`` limit each call; 0 seconds
    disables the child.
    """
    seconds = SECONDS if seconds is None else seconds
    apart = [each for each in validators if seconds and not _stays_in_process(each)]
    child = ValidatorProcess(apart, seconds, MEMORY_MB if memory_mb is None else memory_mb)
    stand_ins = {id(validator): _ValidatorProxy(validator, child, index) for index, validator in enumerate(apart)}
    try:
        isolated = IsolatedValidators(stand_ins.get(id(validator), validator) for validator in validators)
        isolated.child = child if seconds else None
        yield isolated
    finally:
        child.close()


class IsolatedValidators(tuple[ResponseValidator, ...]):
    """Validators with the child process that runs their risky calls, or without one if there is no time limit."""

    child: ValidatorProcess | None


def run_step_isolated(validators: Sequence[ResponseValidator], texts: Collection[str], step: Callable[[], Any]) -> Any:
    """Run a function that reads these texts, and return its result. Long texts are read in a child process.

    The child process is that of the validators; without one, the function runs in this process. Raises
    ``ValidatorFailure`` if the child fails.
    """
    child = validators.child if isinstance(validators, IsolatedValidators) else None
    return child.call_validator(-1, "run_step", (step,)) if child and are_long(texts) else step()


#: Stands for our own code in the child process.
_OWN_CODE: Any = SimpleNamespace(patience=0.0, run_step=lambda step: step())


class _ValidatorProxy(ResponseValidator):
    """Stands in for a validator, and sends risky calls to the validator in a child process."""

    def __init__(self, validator: ResponseValidator, child: ValidatorProcess, index: int) -> None:
        self._validator, self._child, self._index = validator, child, index

    @property
    def name(self) -> str:
        return self._validator.name

    @property
    def mends_files(self) -> bool:  # type: ignore[override]
        return self._validator.mends_files

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        found: list[ValidationIssue] = self._call_validator("validate", response, context)
        return found

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        text: str | None = self._call_validator("apply_fallback", response, context)
        return text

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        lines: Sequence[str] = self._child.call_validator(
            self._index, "explain_fallback", (before, after, dict(context))
        )
        return lines

    def _call_validator(self, method: str, response: str, context: Mapping[str, Any]) -> Any:
        if runs_in_place(self._validator, [response, *(context.get("files") or {}).values()]):
            return getattr(self._validator, method)(response, context)
        return self._child.call_validator(self._index, method, (response, dict(context)))


#: A validator is disabled after this many timeouts.
MOST_OVERRUNS = 3
#: Seconds after the time limit at which the kernel ends an orphaned child.
_GRACE = 5.0


class ValidatorFailure(Exception):
    """Raised if a validator fails, times out or kills its process. The message names the cause."""


class ValidatorProcess:
    """Runs validators in a child process, one call at a time, so that crashes do not harm this process. Thread-safe."""

    def __init__(self, validators: Sequence[ResponseValidator], seconds: float, memory_mb: int) -> None:
        self._validators: list[ResponseValidator] = [*validators, _OWN_CODE]
        self._seconds, self._memory_mb = seconds, memory_mb
        self._overran = [0] * len(self._validators)
        self._pid = 0
        self._pipe: Connection | None = None
        self._closed = False
        self._lock = threading.Lock()

    def call_validator(self, index: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the validator at an index in the child process, and return the method's result.

        The index -1 stands for functions of this package. Raises ``ValidatorFailure`` if the method raised, timed out
        or killed the child.
        """
        seconds = self._seconds + self._validators[index].patience
        with self._lock:
            if self._closed or self._overran[index] >= MOST_OVERRUNS:
                raise ValidatorFailure(f"took longer than {seconds:g} s {MOST_OVERRUNS} times")
            try:
                pipe = self._send_call((index, method, arguments, seconds))
                if not pipe.poll(seconds):
                    self._overran[index] += 1
                    raise ValidatorFailure(f"took longer than {seconds:g} s")
                result, problem, spent = pipe.recv()
            except (EOFError, OSError):
                self._reap_child()
                raise ValidatorFailure("took its process down") from None
            except ValidatorFailure:
                self._reap_child()
                raise
        record_cost(spent)
        if problem:
            raise ValidatorFailure(problem)
        return result

    def close(self) -> None:
        """Kill the child process. A call in progress raises ``ValidatorFailure``."""
        self._closed = True
        self._kill_child()
        while not self._lock.acquire(timeout=0.05):  # a call that has just forked knows its child a moment later
            self._kill_child()
        try:
            self._reap_child()
        finally:
            self._lock.release()

    def _send_call(self, call: tuple[Any, ...]) -> Connection:
        if self._pipe is None:
            return self._fork_child(call)
        try:
            sent = pickle.dumps(call)
        except (TypeError, AttributeError, pickle.PicklingError):
            self._reap_child()
            return self._fork_child(call)
        self._pipe.send_bytes(sent)
        return self._pipe

    def _fork_child(self, call: tuple[Any, ...]) -> Connection:
        from multiprocessing import Pipe

        ours, theirs = Pipe()
        with warnings.catch_warnings():
            # Python warns that a lock of another thread may block the child; the time limit ends such a child.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            try:
                ours.close()
                with divert_output():  # standard output is the command's own, such as JSON
                    self._serve_calls(theirs, call)
            finally:
                os._exit(0)
        theirs.close()
        self._pid, self._pipe = pid, ours
        return ours

    def _reap_child(self) -> None:
        if self._pipe is None:
            return
        self._pipe.close()
        self._kill_child()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._pid, self._pipe = 0, None

    def _kill_child(self) -> None:
        if self._pid:
            kill_family(self._pid)

    def _serve_calls(self, pipe: Connection, call: tuple[Any, ...]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        adopt_orphans()
        own_pid = os.getpid()
        with contextlib.suppress(EOFError, OSError):
            while True:
                index, method, arguments, seconds = call
                signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
                answer = self._run_call(index, method, arguments)
                if os.getpid() != own_pid:
                    return  # a validator forked; its copy of this child must not answer as well
                signal.setitimer(signal.ITIMER_REAL, 0)
                try:
                    pipe.send(answer)
                except (TypeError, AttributeError, pickle.PicklingError) as error:  # the result cannot be pickled
                    pipe.send((None, f"{type(error).__name__}: {error}", answer[2]))
                reap_children()
                call = pipe.recv()

    def _run_call(self, index: int, method: str, arguments: tuple[Any, ...]) -> tuple[Any, str, Any]:
        with measure_cost() as counted:
            try:
                with limit_memory(self._memory_mb):
                    result = getattr(self._validators[index], method)(*arguments)
            except (Exception, SystemExit) as error:
                return None, f"{type(error).__name__}: {error}", counted.spent
        return result, "", counted.spent


_STATUS = Path("/proc/self/status")
#: RLIMIT_DATA before each active ``limit_memory`` block, innermost last.
_before: list[tuple[int, int]] = []


@contextmanager
def limit_memory(megabytes: int) -> Iterator[None]:
    """Limit the memory in MiB that this process may still allocate within the block; more raises ``MemoryError``."""
    old, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [bound for bound in (old, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([read_private_memory() + megabytes * 2**20, *bounds]), hard))
    _before.append((old, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, _before.pop())


@contextmanager
def lift_memory_limit() -> Iterator[None]:
    """Suspend the memory limit within the block, because programs started there have limits of their own."""
    if not _before:
        yield
        return
    bound = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, _before[0])
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, bound)


def read_private_memory() -> int:
    """Return the private memory of this process in bytes, or 0 if the system does not tell."""
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration, ValueError):
        return 0
