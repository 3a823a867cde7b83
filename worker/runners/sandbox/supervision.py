"""Enforce time limits, stop requests, the lease and output limits on one agent process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from api_client.contract.completion import KILLED_BY, OTHERS, Completion, ErrorKind, IncompleteReason, Verdict
from worker.runners.base import SUSPENDED, Order, Stop, find_stop_reason
from worker.runners.observed_calls import ObservedCalls, explain_stop
from worker.runners.pricing import Tokens
from worker.runners.sandbox.agent_process import AgentExit, AgentProcess
from worker.runners.sandbox.bubblewrap import Isolation
from worker.runners.sandbox.guard import DOUBT_SECONDS
from worker.runners.sandbox.resource_usage import ResourceLimits, ResourceUsage

#: Seconds between checks.
PATIENCE = 0.1
#: Largest line and largest output, in bytes.
MAX_LINE = 16 * 2**20
MAX_OUTPUT = 256 * 2**20
#: Seconds of silence after which a finished agent is killed.
_TO_EXIT = 5.0
#: Causes of ending an agent, and how many model calls in a row may fail.
FINISHED, FAILING, MOST_FAILURES = "finished", "its model calls fail, one after the other", 20
#: Seconds between checks of the model calls.
_CALLS_SECONDS = 2.0
#: Exit codes after a SIGKILL, without and with a sandbox.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
#: Seconds after which a guard that has not killed its agent is killed.
_GUARD_PATIENCE = 12.0


class RunLimits(Protocol):
    """The time limits of an agent process."""

    @property
    def deadline(self) -> float:
        """Return the ``time.monotonic()`` value at which the process must have ended."""

    @property
    def idle_seconds(self) -> float:
        """Return how many seconds the process may run without output."""

    @property
    def kill_grace_seconds(self) -> float:
        """Return how many seconds the process has between SIGTERM and SIGKILL."""


class LimitReached(Exception):
    """Raised when the agent exceeds a limit. The message names the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnding:
    """Describes how and why a run ended.

    Attributes:
        exit: the guard's report.
        cause: why the worker ended it: a stop reason, ``idle``, ``deadline``, ``limit``, or ``finished`` (the work was
            done, but the process did not exit); empty if it exited itself.
        detail: the exceeded limit.
        stderr: the last 4 kB of standard error.
        sandbox: the isolation; None if never started.
        observed_calls: the model calls; None without a model proxy.
    """

    exit: AgentExit
    cause: str = ""
    detail: str = ""
    bytes: int = 0
    stderr: str = ""
    sandbox: Isolation | None = None
    observed_calls: ObservedCalls | None = None

    @property
    def counted_tokens(self) -> dict[str, Tokens]:
        """Return the tokens that the model proxy counted, by model."""
        return self.observed_calls.counted_tokens if self.observed_calls else {}

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the facts about the run's end as JSON-ready data."""
        code, sandbox = self.exit.code, self.sandbox
        facts = {
            "exit_code": code,
            "signal": -code if code is not None and code < 0 else None,
            "stopped": self.cause or self.exit.cause,
            KILLED_BY: OTHERS if code in _KILLED and self._killed_by_others else "",
            "bytes": self.bytes,
            "swept": self.exit.swept,
            "left": list(self.exit.left),
            "stderr": self.stderr,
            "sandbox": sandbox.kind if sandbox else "",
            "network": ("cut" if sandbox.cut else "shared") if sandbox and sandbox.kind != "none" else "",
            "model_calls": self.observed_calls.to_dict() if self.observed_calls else None,
        }
        return {name: value for name, value in facts.items() if value or name in {"exit_code", "bytes"}}

    @property
    def finished(self) -> bool:
        """Return whether the agent had finished its work before the worker killed its hanging process."""
        return self.cause == FINISHED

    @property
    def _killed_by_others(self) -> bool:
        """Return whether the agent got a SIGKILL that neither the worker nor the guard sent."""
        sandboxed = self.sandbox is not None and self.sandbox.kind != "none" and self.exit.code == 128 + signal.SIGKILL
        return (sandboxed or self.exit.code == -signal.SIGKILL) and not self.cause and not self.exit.cause


class Supervision:
    """Watches one agent process, passes on its output, and ends the agent at a limit or a stop request."""

    def __init__(
        self,
        process: AgentProcess,
        limits: RunLimits,
        stop: Stop,
        on_line: Callable[[bytes], object],
        footprint: ResourceUsage | None = None,
    ) -> None:
        self.process = process
        #: Set by ``on_line`` to stop watching; the agent may keep running.
        self.settled = False
        self.blank_lines = False
        self.finished: Callable[[], bool] = lambda: False
        self.failures: Callable[[], int] = lambda: 0
        self._looked = 0.0
        self._footprint = footprint or ResourceUsage(ResourceLimits())
        self._limits = limits
        self._stop = stop
        self._on_line = on_line
        self._cause = ""
        self._detail = ""
        self._forgot = False
        self._bytes = 0
        self._rest = bytearray()
        self._heard = self._checked = time.monotonic()
        self._doubts = 0
        self._lease_ends = 0.0
        self._give_up = float("inf")

    def run(self) -> RunEnding:
        """Watch the agent in this thread until it ends, and return how the run ended."""
        return self.build_ending(self.watch_agent())

    def watch_agent(self) -> AgentExit:
        """Watch the agent in this thread until it ends, and return the guard's report."""
        try:
            return self._watch_loop()
        except BaseException:
            self.end_agent("failed", grace=0)
            while self.process.wait_for_end(PATIENCE) is None:
                self._check_guard()
            self.process.close()
            raise

    def build_ending(self, ended: AgentExit) -> RunEnding:
        """Return how the run ended, from the guard's report and the observed output. May block.

        Exit code 0 before our order arrived is a normal end, even if a frozen worker finds its lease over.
        """
        if ended.code == 0 and not ended.cause and not self._forgot:
            self._cause = ""
        try:
            if not self._cause and (exceeded := self._footprint.check_folders()):
                self._cause, self._detail = "limit", exceeded
        finally:
            stderr = self.process.read_stderr()
            self.process.close()
        return RunEnding(exit=ended, cause=self._cause, detail=self._detail, bytes=self._bytes, stderr=stderr)

    def _watch_loop(self) -> AgentExit:
        while True:
            ended = self.process.wait_for_end(0)
            piece = self.process.read_output(PATIENCE)
            if piece:
                self.take_output(piece)
            elif ended is not None:
                self.take_last_line()
                return ended
            elif piece is None:
                self.process.wait_for_end(PATIENCE)
            self.check_limits()
            self.enforce_limit(self.find_exceeded())

    def take_output(self, piece: bytes) -> None:
        """Pass the complete lines in a piece of output to the callback ``on_line``."""
        if self._cause and self._cause != "fenced":  # a fenced agent dies at once, so its output is older
            self._forgot = True
            return  # read on so that the agent does not block, but discard
        self._bytes += len(piece)
        self._rest += piece
        if b"\n" in piece:
            # Split only at b"\n": str.splitlines also splits at characters that JSON strings may contain.
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            self._pass_lines(lines)
        if len(self._rest) > MAX_LINE:
            self._end_for_limit(f"a line of more than {MAX_LINE} bytes")
        elif self._bytes > MAX_OUTPUT:
            self._end_for_limit(f"more than {MAX_OUTPUT} bytes of output")
        self._heard = time.monotonic()  # time spent in callbacks is not silence

    @property
    def output_size(self) -> int:
        """Return the size of the output so far, in bytes."""
        return self._bytes

    @property
    def at_line_end(self) -> bool:
        """Return whether the last line of output is complete and the agent is not being stopped."""
        return not self._rest and not self._cause

    def take_last_line(self) -> None:
        """Pass the last line of output to the callback, even without a newline at its end."""
        if self._rest:
            self._pass_lines([bytes(self._rest)])

    def _pass_lines(self, lines: list[bytes]) -> None:
        try:
            for line in lines:
                if self.blank_lines or line.strip():
                    self._on_line(line)
        except LimitReached as limit:
            self._end_for_limit(str(limit))

    def find_exceeded(self) -> str:
        """Return the limit that the agent exceeds, or an empty string if it exceeds none. May block."""
        if (now := time.monotonic()) - self._looked >= _CALLS_SECONDS:
            self._looked = now
            if self.failures() > MOST_FAILURES:
                return FAILING
        return self._footprint.find_exceeded(self.process.pid)

    def enforce_limit(self, exceeded: str) -> None:
        """Kill the agent if ``exceeded`` names a limit. Do nothing for an empty string."""
        if exceeded and not self._cause:
            self._end_for_limit(exceeded)

    def _end_for_limit(self, detail: str) -> None:
        self._detail, self._forgot = detail, True
        self.end_agent("limit", grace=0)

    def check_limits(self) -> None:
        """End the agent if a stop request, a time limit or the lease requires it. Call every ``PATIENCE`` seconds."""
        now, reason = time.monotonic(), self._find_stop_reason()
        if self._doubts or now - self._checked > 10 * PATIENCE:  # the agent was suspended, or the worker was frozen
            self._heard += now - self._checked
        self._checked = now
        if reason == "fenced" and self._cause != "fenced":
            self._cause = ""
            self.end_agent("fenced", grace=0)
        elif not self._cause:
            if reason:
                self.end_agent(reason)
            elif now >= self._limits.deadline:
                self.end_agent("deadline")
            elif now - self._heard >= _TO_EXIT and self.finished():
                self.end_agent(FINISHED)
            elif now - self._heard >= self._limits.idle_seconds:
                self.end_agent("idle")
        lease_ends = self._stop.lease_ends
        if lease_ends != self._lease_ends:
            self._lease_ends = lease_ends
            self.process.extend_lease(lease_ends)
        self._check_guard()

    def _find_stop_reason(self) -> str:
        self._doubts = self._doubts + 1 if getattr(self._stop, "in_doubt", False) else 0
        return self._stop.reason if self._doubts * PATIENCE > 2 * DOUBT_SECONDS else find_stop_reason(self._stop)

    def end_agent(self, cause: str, grace: float | None = None) -> None:
        """Terminate the agent for the reason ``cause``. Only the first reason is kept."""
        grace = self._limits.kill_grace_seconds if grace is None else grace
        self._cause = self._cause or cause
        self._give_up = time.monotonic() + grace + _GUARD_PATIENCE
        self.process.terminate_agent(grace)

    def _check_guard(self) -> None:
        if time.monotonic() >= self._give_up:
            self._give_up = float("inf")
            self.process.kill_guard()


def explain_own_stop(ending: RunEnding, order: Order, evidence: dict[str, Any]) -> Completion | None:
    """Return the verdict on a run that the worker stopped or could not start, or None for other runs."""
    if ending.finished:
        return None
    if ending.exit.error:
        reason = f"the agent could not be started: {ending.exit.error}"
        kind = ErrorKind.HOST if ending.exit.passing else ErrorKind.CONFIG
        return Completion(verdict=Verdict.ERROR, kind=kind, reason=reason, evidence=evidence)
    if ending.cause == "limit":
        reason = f"the agent went over a limit: {ending.detail}"
        completion = Completion(verdict=Verdict.ERROR, kind=ErrorKind.LIMIT, reason=reason, evidence=evidence)
        return explain_stop(completion, ending.observed_calls) if ending.detail == FAILING else completion
    incomplete = {
        "idle": (IncompleteReason.IDLE, f"the agent was silent for {order.idle_seconds:g} s"),
        "deadline": (IncompleteReason.DEADLINE, "the run's time was up"),
    }
    why, reason = incomplete.get(ending.cause, (None, ""))
    if why:
        completion = Completion(verdict=Verdict.INCOMPLETE, why=why, reason=reason, evidence=evidence)
        return explain_stop(completion, ending.observed_calls)
    # An ended lease or a dead guard is the worker's fault, so no attempt is used up.
    cause = ending.cause or (ending.exit.cause if ending.exit.cause in {"lease ended", "guard died"} else "")
    if cause == SUSPENDED:
        return Completion(verdict=Verdict.ASKS, reason="the run waits for an answer", evidence=evidence)
    if cause:
        completion = Completion(verdict=Verdict.CANCELLED, reason=f"stopped: {cause}", evidence=evidence)
        return explain_stop(completion, ending.observed_calls) if cause == "expired" else completion
    return None
