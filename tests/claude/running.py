"""Running the real CLI through our runner, against the stub: what endings, continuation and safety tests share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from api_client.contract.settings import Settings
from tests.claude.stub import Stub
from tests.support import processes_with, wait_for
from worker.runners.base import AgentEvent, Order, RunResult
from worker.runners.claude.completion_gate import read_marks
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.guard.processes import Processes
from worker.runners.warm import idle_agents

#: The version the endings were measured with; `make e2e-claude` installs it.
VERSION = "2.1.329"
_INSTALLED = Path(__file__).parents[2] / ".helix-tools" / f"claude-{VERSION}" / "claude"


def cli() -> Path | None:
    """The real CLI, if it is installed here."""
    path = Path(os.environ.get("CLAUDE_CLI") or _INSTALLED)
    return path if path.is_file() else None


def inside(root: Path, program: Path) -> Path:
    """The CLI as a file of the project, so that a script around it finds it in a box too."""
    path = root / "tools" / "claude"
    path.parent.mkdir()
    try:
        path.hardlink_to(program)
    except OSError:  # another disk
        shutil.copy(program, path)
    return path


@dataclass
class Asked:
    """A stop request that a test sets."""

    reason: str = ""
    lease_ends: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run and what could be seen of it.

    ``hooks``: those that ran, whoever's they are; SessionEnd is what writes ADR-036's ``.done``.
    """

    result: RunResult
    order: Order
    events: list[AgentEvent]
    seconds: float
    hooks: list[str]

    @property
    def verdict(self) -> str:
        kind = self.result.completion.kind
        return kind.value if kind else self.result.completion.verdict.value

    @property
    def reason(self) -> str:
        return self.result.completion.reason

    @property
    def evidence(self) -> dict[str, Any]:
        return self.result.completion.evidence

    @property
    def shown(self) -> str:
        """What a reader of the events sees at the end."""
        text = ""
        for event in self.events:
            text = "" if event.kind == "reset" else text + (event.text if event.kind == "output" else "")
        return text


@dataclass
class Agent:
    """Runs the CLI as a worker would, in a session of its own below ``root``."""

    root: Path
    stub: Stub
    agents: Processes
    program: Path
    settings: dict[str, Any] = field(default_factory=dict)
    session: str = "s"
    _runs: int = 0

    @property
    def workdir(self) -> Path:
        return self.root / "projects" / "sessions" / self.session

    def wrapped(self, script: str) -> Agent:
        """The same with a program of the test's own around the CLI, which is ``"$CLI"`` there."""
        path = self.root / f"claude-{abs(hash(script))}"
        path.write_text(f"#!/bin/bash\nCLI={shlex.quote(str(self.program))}\n{script}\n")
        path.chmod(0o755)
        return replace(self, program=path)

    def run(
        self,
        prompt: str = "Hallo",
        *,
        when: Callable[[AgentEvent, Order], object] | None = None,
        stop: Asked | None = None,
        environment: dict[str, str] | None = None,
        **values: Any,
    ) -> Ran:
        """One run. ``when`` hears every event as it comes."""
        self._runs += 1
        turn = f"t0-{self.root.parent.name}-{self.root.name}-{self.session}"  # of this test process alone
        directory = self.workdir / "attempts" / f"{turn}-{self._runs}"
        (directory / "output").mkdir(parents=True)
        defaults: dict[str, Any] = {
            "turn_id": turn,
            "session_id": self.session,
            "attempt": 1,
            "delivery": self._runs,
            "prompt": prompt,
            "messages": ({"role": "user", "content": prompt},),
            "workdir": self.workdir,
            "directory": directory,
            "deadline": time.monotonic() + 60,
            "idle_seconds": 30.0,
            "locale": "de",
        }
        order = Order(**(defaults | values))
        events: list[AgentEvent] = []

        def emit(event: AgentEvent) -> None:
            events.append(event)
            if when:
                when(event, order)

        started = time.monotonic()
        result = asyncio.run(ClaudeCliRunner(self.agents, self.effective).run_async(order, emit, stop or Asked()))
        seconds = time.monotonic() - started
        if not len(idle_agents.shared()):
            assert processes_with(f"HELIX_AGENT_MARK={order.mark}") == {}, "a process of the run is left"
        hooks = list(read_marks(directory))
        return Ran(result=result, order=order, events=events, seconds=seconds, hooks=hooks)

    @property
    def effective(self) -> Settings:
        """The settings its runs are under."""
        given = {"claude_api_url": self.stub.url, "claude_api_key": "sk-stub", "box": "off", **self.settings}
        return Settings(root=self.root, claude_path=str(self.program), **given)


@functools.cache
def can_mount() -> bool:
    """Whether this user may mount a disk: a test of a full one needs one of its own."""
    try:
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "disk"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A disk of 8 MB at a path."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def send(order: Order, number: signal.Signals) -> None:
    """Send a signal to the CLI of a run."""
    found = wait_for(lambda: processes_with(f"HELIX_AGENT_MARK={order.turn_id}."))
    os.kill(min(found), number)


def at_first_output(number: signal.Signals, seconds: float = 0.0) -> Callable[[AgentEvent, Order], None]:
    """Send a signal as soon as the answer begins, or so many seconds later."""
    sent: list[bool] = []

    def hear(event: AgentEvent, order: Order) -> None:
        if event.kind == "output" and not sent:
            sent.append(True)
            threading.Timer(seconds, send, (order, number)).start() if seconds else send(order, number)

    return hear
