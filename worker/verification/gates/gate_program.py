"""Runs a gate's program in its own process session, with a clean environment and limits."""

from __future__ import annotations

import math
import os
import sys
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.runners.base import Stop
from worker.runners.sandbox import bubblewrap, guard_client
from worker.runners.sandbox.agent_process import AgentProcess
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.runners.sandbox.guard_client import FAST_PYTHON, SOURCE_ROOT
from worker.runners.sandbox.resource_usage import ResourceLimits, ResourceUsage
from worker.runners.sandbox.rlimits import CANNOT_RUN
from worker.runners.sandbox.supervision import RunEnding, Supervision
from worker.verification.gates.gate_sandbox import GateSandbox
from worker.verification.gates.stop import CheckInterrupted, StopRequest

#: How many lines of output are kept, from the end, and the longest line in characters.
TAIL_LINES, TAIL_WIDTH = 400, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """Limits on a program's time and silence (in seconds) and its memory (in MiB, 0 for unlimited)."""

    seconds: float = 300.0
    silence: float = math.inf
    memory_mb: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class GateProgramResult:
    """The result of a program that a gate ran: its exit code, or why it was stopped or did not start.

    Attributes:
        code: exit code; negative for a signal; None if unknown.
        cause: ``deadline``, ``idle`` or ``limit`` if the program was stopped, else empty.
        error: why the program could not be started, or empty.
    """

    code: int | None
    cause: str = ""
    detail: str = ""
    error: str = ""
    lines: tuple[str, ...] = ()
    limits: ProgramLimits = field(default_factory=ProgramLimits)

    @property
    def problem(self) -> str:
        """Return why the program was stopped, or an empty string if it ended by itself."""
        reasons = {"deadline": f"> {self.limits.seconds:g} s", "idle": f"> {self.limits.silence:g} s without output"}
        return reasons.get(self.cause, self.detail) if self.cause else ""

    @property
    def last_line(self) -> str:
        """Return the last non-blank line of the program's output, or an empty string."""
        return next((line.strip() for line in reversed(self.lines) if line.strip()), "")


@dataclass(frozen=True, slots=True)
class _SupervisionTimes:
    deadline: float
    idle_seconds: float
    kill_grace_seconds: float = 2.0


def run_program(
    argv: Sequence[str],
    directory: Path,
    *,
    limits: ProgramLimits | None = None,
    stop: Stop | None = None,
    deadline: float = math.inf,
    mark: str = "",
    stdin: bytes = b"",
    home: Path | None = None,
    tail: int = TAIL_LINES,
    fence: GateSandbox | None = None,
    own: SandboxMount | None = None,
) -> GateProgramResult:
    """Run a program until it ends, and return the result.

    Args:
        stop: stops the program when its reason is set.
        mark: process tag; default: a random tag.
        home: HOME and temporary folder, created if missing.
        fence: sandbox of the program; None: no sandbox.
        own: the folder visible in the sandbox; default: ``directory``, writable.

    Raises:
        SandboxError: a sandbox is required and cannot be created.
        CheckInterrupted: ``stop`` was set, the lease ended or ``deadline`` passed; the processes are gone.
    """
    limits, stop, bounds = limits or ProgramLimits(), stop or StopRequest(), fence.bounds if fence else ResourceLimits()
    if home is not None:
        home.mkdir(exist_ok=True)
    command = [*FAST_PYTHON, "worker.runners.sandbox.rlimits", str(limits.memory_mb), *argv]
    process = guard_client.shared_processes().spawn_agent(
        fence.wrap_command(command, directory, own or SandboxMount(directory, writable=True)) if fence else command,
        mark=mark or f"gate-{uuid.uuid4().hex}",
        env={**build_environment(home), "PYTHONPATH": SOURCE_ROOT},
        cwd=directory,
        stdin=stdin,
        lease_ends=stop.lease_ends,
        open_files=bounds.most_open_files,
    )
    folders = [own.path] if own and own.writable else []
    footprint = ResourceUsage(bounds, folders, sandboxed=fence is not None and fence.sandboxed)
    return _supervise_program(process, footprint, limits, stop, deadline, tail, fenced=fence is not None)


def _supervise_program(
    process: AgentProcess,
    footprint: ResourceUsage,
    limits: ProgramLimits,
    stop: Stop,
    deadline: float,
    tail: int,
    *,
    fenced: bool,
) -> GateProgramResult:
    lines: deque[str] = deque(maxlen=tail)
    ends = time.monotonic() + limits.seconds
    times = _SupervisionTimes(deadline=min(deadline, ends), idle_seconds=limits.silence)

    def collect_line(line: bytes) -> None:
        lines.append(line.decode("utf-8", "replace").rstrip("\r")[:TAIL_WIDTH])

    ending = Supervision(process, times, stop, collect_line, footprint).run()
    cause = ending.cause or ending.exit.cause
    if (cause and cause not in {"deadline", "idle", "limit"}) or (cause == "deadline" and deadline < ends):
        raise CheckInterrupted(cause)
    error = _explain_start_failure(ending, tuple(lines), sandboxed=fenced)
    return GateProgramResult(
        code=ending.exit.code, cause=cause, detail=ending.detail, error=error, lines=tuple(lines), limits=limits
    )


def _explain_start_failure(ending: RunEnding, lines: Sequence[str], *, sandboxed: bool) -> str:
    if ending.exit.error:
        return ending.exit.error
    if ending.exit.code == CANNOT_RUN and len(lines) == 1:
        return lines[-1]
    return bubblewrap.find_sandbox_error(ending.stderr) if sandboxed and not ending.bytes else ""


def build_environment(home: Path | None) -> dict[str, str]:
    """Return the environment variables for a gate's program. PATH starts with this Python's folder."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        **({"HOME": str(home), "TMPDIR": str(home)} if home else {"HOME": "/nonexistent"}),
        "LANG": "C.UTF-8",
        "TZ": os.environ.get("TZ", "") or "UTC",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
