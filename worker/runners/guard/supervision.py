"""Watching one agent process from its start to the end: time limits, stop requests, the lease, the size of its output.

Knows nothing of what the agent says: whole lines go to a callback. Used by every runner that starts a process.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from api_client.contract.completion import KILLED_BY, OTHERS, Completion, ErrorKind, Verdict, Why
from worker.runners.base import Order, Stop, stop_reason
from worker.runners.guard.agent_process import AgentProcess, Exit
from worker.runners.guard.box import Level
from worker.runners.guard.footprint import Bounds, Footprint
from worker.runners.guard.guard import DOUBT_SECONDS
from worker.runners.pricing import Tokens
from worker.runners.witnessed import ObservedCalls, explained

#: How often ``stop`` is looked at, in seconds.
PATIENCE = 0.1
#: Longest line and longest output in bytes.
MAX_LINE = 16 * 2**20
MAX_OUTPUT = 256 * 2**20
#: An agent that has said and proven its end, and is silent so long, in seconds, is ended: it hangs.
_TO_EXIT = 5.0
#: Why we end an agent that has finished, and one whose model calls go on failing; this many in a row may fail.
FINISHED, FAILING, MOST_FAILURES = "finished", "its model calls fail, one after the other", 20
#: How often its model calls are looked at, in seconds.
_CALLS_SECONDS = 2.0
#: Exit codes of a process that a SIGKILL ended, itself or in a box.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
#: A guard that has not ended an agent so long after it should have is itself ended.
_GUARD_PATIENCE = 12.0


class RunLimits(Protocol):
    """The time that a process may run and be silent; an ``Order`` says it for an agent."""

    @property
    def deadline(self) -> float:
        """When it must be over, by ``time.monotonic()``."""
        ...

    @property
    def idle_seconds(self) -> float:
        """Longest silence."""
        ...

    @property
    def kill_grace_seconds(self) -> float:
        """Time between SIGTERM and SIGKILL."""
        ...


class LimitReached(Exception):
    """The agent went over a limit; raised by the line callback too. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a run.

    Attributes:
        exit: what the guard reported.
        cause: why we ended it: a stop's reason, ``idle``, ``deadline``, ``limit``, ``finished``: it had ended its work,
            not its process; empty when it ended by itself.
        detail: the limit that was reached. bytes: size of its output, up to then.
        stderr: the last 4 kB of standard error. box: what it ran in; None when it was never started.
        witnessed: its model calls, as its door saw them; None where it had no door.
    """

    exit: Exit
    cause: str = ""
    detail: str = ""
    bytes: int = 0
    stderr: str = ""
    box: Level | None = None
    witnessed: ObservedCalls | None = None

    @property
    def counted(self) -> dict[str, Tokens]:
        """Return the tokens of each model that its model proxy counted."""
        return self.witnessed.counted if self.witnessed else {}

    @property
    def evidence(self) -> dict[str, Any]:
        """The facts, JSON-ready."""
        code = self.exit.code
        facts = {
            "exit_code": code,
            "signal": -code if code is not None and code < 0 else None,
            "stopped": self.cause or self.exit.cause,
            KILLED_BY: OTHERS if code in _KILLED and self._killed_by_others else "",
            "bytes": self.bytes,
            "swept": self.exit.swept,
            "left": list(self.exit.left),
            "stderr": self.stderr,
            "box": self.box.kind if self.box else "",
            "network": self.network,
            "witness": self.witnessed.to_dict() if self.witnessed else None,
        }
        return {name: value for name, value in facts.items() if value or name in {"exit_code", "bytes"}}

    @property
    def finished(self) -> bool:
        """Return whether it had finished when we ended it: its exit code is ours."""
        return self.cause == FINISHED

    @property
    def _killed_by_others(self) -> bool:
        """Return whether a SIGKILL ended it that neither its worker nor its guard sent; a box ends as a shell would."""
        boxed = self.box is not None and self.box.kind != "none" and self.exit.code == 128 + signal.SIGKILL
        return (boxed or self.exit.code == -signal.SIGKILL) and not self.cause and not self.exit.cause

    @property
    def network(self) -> str:
        """Return what of the network was in the box; empty without one."""
        return ("cut" if self.box.cut else "shared") if self.box and self.box.kind != "none" else ""


class Supervision:
    """One agent under watch. ``run`` returns when no process of it is left; ``watched`` does the same in a loop."""

    def __init__(
        self,
        process: AgentProcess,
        limits: RunLimits,
        stop: Stop,
        on_line: Callable[[bytes], object],
        footprint: Footprint | None = None,
    ) -> None:
        self.process = process
        #: Set by ``on_line`` where its owner has heard all it waits for: it is watched no more, and may live on.
        self.settled = False
        #: Whether ``on_line`` hears of empty lines too.
        self.blank_lines = False
        #: Whether it has said and proven its end, so that only its exit is missing.
        self.finished: Callable[[], bool] = lambda: False
        #: How many of its last model calls ended badly, one after the other. May block.
        self.failures: Callable[[], int] = lambda: 0
        self._looked = 0.0
        self._footprint = footprint or Footprint(Bounds())
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

    def run(self) -> Ending:
        """Watch it to the end, in this thread. Raises as ``watch``."""
        return self.ending(self.watch())

    def watch(self) -> Exit:
        """As ``watched``, in this thread. What ``on_line`` raises ends the agent, and goes on to the caller."""
        try:
            return self._watch()
        except BaseException:
            self.end("failed", grace=0)
            while self.process.wait(PATIENCE) is None:
                self._check_guard()
            self.process.close()
            raise

    def ending(self, ended: Exit) -> Ending:
        """The result of the watch. Looks at its folders: that may block.

        An agent that had ended well before our order to end it arrived has finished: a worker that was frozen meanwhile
        finds its lease over before it hears of that. Whether the turn is still this worker's, only the store knows.
        """
        if ended.code == 0 and not ended.cause and not self._forgot:
            self._cause = ""
        try:
            if not self._cause and (exceeded := self._footprint.folders()):
                self._cause, self._detail = "limit", exceeded
        finally:
            stderr = self.process.stderr()
            self.process.close()
        return Ending(exit=ended, cause=self._cause, detail=self._detail, bytes=self._bytes, stderr=stderr)

    def _watch(self) -> Exit:
        while True:
            ended = self.process.wait(0)
            piece = self.process.read(PATIENCE)
            if piece:
                self.hear(piece)
            elif ended is not None:  # all its processes are gone, so nothing more can come
                self.hear_rest()
                return ended
            elif piece is None:
                self.process.wait(PATIENCE)
            self.check()
            self.weigh(self.exceeded())

    def hear(self, piece: bytes) -> None:
        """Take a piece of its output. Raises what ``on_line`` raises, but ``LimitReached``."""
        if self._cause and self._cause != "fenced":  # that ends it at once: what comes was said before
            self._forgot = True
            return  # it is being stopped: read on, so that it is not held up, and forget
        self._bytes += len(piece)
        self._rest += piece
        if b"\n" in piece:
            # Only at b"\n": other separators of str.splitlines may stand inside a JSON string.
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            self._hand_on(lines)
        if len(self._rest) > MAX_LINE:
            self._limit(f"a line of more than {MAX_LINE} bytes")
        elif self._bytes > MAX_OUTPUT:
            self._limit(f"more than {MAX_OUTPUT} bytes of output")
        self._heard = time.monotonic()  # only now: the time that handing on took is not the agent's silence

    @property
    def heard(self) -> int:
        """Return how much it has said, in bytes."""
        return self._bytes

    @property
    def at_line_end(self) -> bool:
        """Return whether its last line has come whole, and nothing ends it."""
        return not self._rest and not self._cause

    def hear_rest(self) -> None:
        """Nothing more comes: take the last line, which may lack its end. Raises as ``hear``."""
        if self._rest:
            self._hand_on([bytes(self._rest)])

    def _hand_on(self, lines: list[bytes]) -> None:
        try:
            for line in lines:
                if self.blank_lines or line.strip():
                    self._on_line(line)
        except LimitReached as limit:
            self._limit(str(limit))

    def exceeded(self) -> str:
        """The bound that it is over by now, or empty. May block; looks at most every half second."""
        if (now := time.monotonic()) - self._looked >= _CALLS_SECONDS:
            self._looked = now
            if self.failures() > MOST_FAILURES:
                return FAILING
        return self._footprint.exceeded(self.process.pid)

    def weigh(self, exceeded: str) -> None:
        """End it when it is over a bound; ``exceeded`` says which, empty for none."""
        if exceeded and not self._cause:
            self._limit(exceeded)

    def _limit(self, detail: str) -> None:
        self._detail, self._forgot = detail, True
        self.end("limit", grace=0)

    def check(self) -> None:
        """Look at stop requests, times and the lease. To be called every ``PATIENCE``; never blocks for long."""
        now, reason = time.monotonic(), self._reason()
        if self._doubts or now - self._checked > 10 * PATIENCE:  # it was suspended, or we were frozen
            self._heard += now - self._checked
        self._checked = now
        if reason == "fenced" and self._cause != "fenced":
            self._cause = ""
            self.end("fenced", grace=0)
        elif not self._cause:
            if reason:
                self.end(reason)
            elif now >= self._limits.deadline:
                self.end("deadline")
            elif now - self._heard >= _TO_EXIT and self.finished():
                self.end(FINISHED)
            elif now - self._heard >= self._limits.idle_seconds:
                self.end("idle")
        lease_ends = self._stop.lease_ends
        if lease_ends != self._lease_ends:
            self._lease_ends = lease_ends
            self.process.extend(lease_ends)
        self._check_guard()

    def _reason(self) -> str:
        """Return why it must stop. Waits rounds, not seconds, for the store's word: a freeze takes none of them."""
        self._doubts = self._doubts + 1 if getattr(self._stop, "in_doubt", False) else 0
        return self._stop.reason if self._doubts * PATIENCE > 2 * DOUBT_SECONDS else stop_reason(self._stop)

    def end(self, cause: str, grace: float | None = None) -> None:
        """End it for a cause; the first one counts."""
        grace = self._limits.kill_grace_seconds if grace is None else grace
        self._cause = self._cause or cause
        self._give_up = time.monotonic() + grace + _GUARD_PATIENCE
        self.process.terminate(grace)

    def _check_guard(self) -> None:
        if time.monotonic() >= self._give_up:
            self._give_up = float("inf")
            self.process.abandon()


def stopped(ending: Ending, order: Order, evidence: dict[str, Any]) -> Completion | None:
    """The verdict over an agent that was ended or never started; None when it ended by itself, or had finished.

    Where its model calls had failed, the provider's reason is the verdict's.
    """
    if ending.finished:
        return None
    if ending.exit.error:
        reason = f"the agent could not be started: {ending.exit.error}"
        kind = ErrorKind.HOST if ending.exit.passing else ErrorKind.CONFIG
        return Completion(verdict=Verdict.ERROR, kind=kind, reason=reason, evidence=evidence)
    if ending.cause == "limit":
        reason = f"the agent went over a limit: {ending.detail}"
        completion = Completion(verdict=Verdict.ERROR, kind=ErrorKind.LIMIT, reason=reason, evidence=evidence)
        return explained(completion, ending.witnessed) if ending.detail == FAILING else completion
    incomplete = {
        "idle": (Why.IDLE, f"the agent was silent for {order.idle_seconds:g} s"),
        "deadline": (Why.DEADLINE, "the run's time was up"),
    }
    why, reason = incomplete.get(ending.cause, (None, ""))
    if why:
        completion = Completion(verdict=Verdict.INCOMPLETE, why=why, reason=reason, evidence=evidence)
        return explained(completion, ending.witnessed)
    # The end of a lease or of a guard is the worker's fault, not the agent's: it uses up no attempt.
    cause = ending.cause or (ending.exit.cause if ending.exit.cause in {"lease ended", "guard died"} else "")
    if cause:
        completion = Completion(verdict=Verdict.CANCELLED, reason=f"stopped: {cause}", evidence=evidence)
        return explained(completion, ending.witnessed) if cause == "expired" else completion
    return None
