"""One trial of the probe: the targets it tries to reach, real ones, and what it reached."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.probe.ways import WAYS
from tests.support import processes_with
from worker.runners.base import Order
from worker.runners.guard.box import Bind
from worker.runners.guard.launch import Launch, run
from worker.runners.guard.processes import Processes
from worker.runners.transcript import Transcript

_PROBE = Path(__file__).with_name("ways.py")
_STAYING = {
    "processes: a child in a session of its own stays": "helix-probe-child",
    "processes: a child with a wiped environment stays": "helix-probe-scrubbed",
}


class _Never:
    reason = ""
    lease_ends = math.inf


def _file(path: Path, content: str = "SECRET") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@contextlib.contextmanager
def targets(folder: Path, guard: int) -> Iterator[dict[str, str]]:
    """Everything the probe tries to reach. ``folder`` is all its own, in ``/tmp``."""
    root = folder / "root"
    for name in (".env", ".helix/run.json", "src.py", ".git/hooks/pre-commit", "adr/ADR-001.md"):
        _file(root / name)
    sessions = root / "projects" / "sessions"
    for name in ("other/output/response.md", "s/output/.done", "s/status.json", "s/attempts/t-1-0/output/response.md"):
        _file(sessions / name)
    home, tmp_file = folder / "home", _file(folder / "tmp.txt")
    _file(home / ".ssh" / "id")
    abstract = f"helix-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:

        def listening(family: int, address: str | tuple[str, int]) -> socket.socket:
            server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            server.bind(address)
            server.listen()
            return server

        broker, tmp_socket = root / ".helix" / "valkey.sock", folder / "tmp.sock"
        listening(socket.AF_UNIX, str(broker))
        listening(socket.AF_UNIX, str(tmp_socket))
        listening(socket.AF_UNIX, "\0" + abstract)
        port = listening(socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]
        sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        victim, worker = (
            stack.enter_context(subprocess.Popen(sleeping, env={"NAME": secret}))
            for secret in ("SECRET-VICTIM", "SECRET-ENV")
        )
        for process in (victim, worker):
            stack.callback(process.kill)
        yield {
            "root": str(root),
            "other": str(sessions / "other"),
            "home": str(home),
            "tmp_file": str(tmp_file),
            "tmp_socket": str(tmp_socket),
            "broker": str(broker),
            "abstract": abstract,
            "port": str(port),
            "victim": str(victim.pid),
            "worker": str(worker.pid),
            "guard": str(guard),
        }


def reached(folder: Path, box: str) -> dict[str, bool]:
    """Let the probe try every way, and say which are open.

    Args:
        folder: an empty folder of this trial's own.
        box: ``HELIX_BOX``: ``off`` or ``required``.
    """
    agents = Processes()
    try:
        with targets(folder, agents.start()) as at:
            return _tried(folder, agents, at, box)
    finally:
        agents.stop()


def _tried(folder: Path, agents: Processes, at: dict[str, str], box: str) -> dict[str, bool]:
    workdir = Path(at["root"]) / "projects" / "sessions" / "s"
    directory = workdir / "attempts" / "t-1-1"
    _file(directory / "marks" / "Stop")
    order = Order(
        turn_id=f"probe-{os.getpid()}",
        session_id="s",
        attempt=1,
        delivery=1,
        prompt="",
        messages=(),
        workdir=workdir,
        directory=directory,
        deadline=time.monotonic() + 60,
    )
    prefixes = [Bind(Path(prefix)) for prefix in dict.fromkeys((sys.base_prefix, sys.prefix))]
    launch = Launch(
        argv=[sys.executable, "-S", str(_PROBE)],
        env={"PATH": os.defpath, "ANTHROPIC_API_KEY": "SECRET-KEY"},
        stdin=json.dumps(at).encode(),
        binds=[*prefixes, Bind(_PROBE), Bind(Path(at["root"]) / "src.py"), Bind(Path(at["root"]) / "adr")],
        box=box,
    )
    transcript = Transcript()
    ending = run(agents, launch, order, _Never(), lambda _: None, transcript.take_line)
    assert transcript.result, (ending.exit, ending.stderr)
    found: dict[str, bool] = json.loads(transcript.text)
    assert list(found) == list(WAYS)
    return found | {name: bool(processes_with(child)) for name, child in _STAYING.items()}
