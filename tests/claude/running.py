"""Running the real CLI through our runner, against the stub: what endings, continuation and safety tests share."""

from __future__ import annotations

import contextlib
import functools
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
from tests.runs import Asked, Ran, ordered, ran
from tests.support import processes_with, wait_for
from worker.runners.base import AgentEvent, Order
from worker.runners.claude.hooks import read_marks
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.warm import idle_agents

#: The version the endings were measured with; `make e2e-claude` installs it.
VERSION = "2.1.329"
_INSTALLED = Path(__file__).parents[2] / ".helix-tools" / f"claude-{VERSION}" / "claude"


def cli() -> Path | None:
    """The real CLI, if it is installed here."""
    path = Path(os.environ.get("CLAUDE_CLI") or _INSTALLED)
    return path if path.is_file() else None


def inside(root: Path, program: Path) -> Path:
    """The CLI as a file of the project, so that a script around it finds it in a sandbox too."""
    path = root / "tools" / "claude"
    path.parent.mkdir()
    try:
        path.hardlink_to(program)
    except OSError:  # another disk
        shutil.copy(program, path)
    return path


@dataclass
class Agent:
    """Runs the CLI as a worker would, in a session of its own below ``root``."""

    root: Path
    stub: Stub
    agents: AgentProcesses
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
        turn = f"turn-{self.root.parent.name}-{self.root.name}-{self.session}"  # of this test process alone
        limits = {"deadline": time.monotonic() + 60, "idle_seconds": 30.0}
        order = ordered(self.workdir, turn, self._runs, prompt, **(limits | values))
        runner = ClaudeCliRunner(self.agents, self.effective)
        found = ran(runner, order, when, stop, keeps=idle_agents.shared_idle_agents().__len__)
        return replace(found, hooks=list(read_marks(order.directory)))

    @property
    def effective(self) -> Settings:
        """The settings its runs are under."""
        given = {"claude_api_url": self.stub.url, "claude_api_key": "sk-stub", "sandbox": "off"}
        given |= {"claude_spares": 0, **self.settings}  # a test knows all processes
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
