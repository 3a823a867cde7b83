"""One trial of the probe: the targets it tries to reach, real ones, and what it reached."""

import contextlib
import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from tests.lab.probe.kernel_ways import LIBC, call
from tests.lab.probe.ways import WAYS
from tests.runs import Asked, ended, order_in
from tests.support import processes_with
from worker.files.workspace import read_accepted_files
from worker.runners.base import Order
from worker.runners.claude.cli_launch import allowed_destinations, proxy_environment
from worker.runners.event_reader import EventReader
from worker.runners.sandbox.bubblewrap import PROXY_PORT, SandboxMount
from worker.runners.sandbox.guard_client import SOURCE_ROOT, AgentProcesses
from worker.runners.sandbox.launch import Hear, Launch, StartedAgent, start_agent
from worker.runners.sandbox.resource_usage import ResourceLimits
from worker.runners.sandbox.supervision import RunEnding
from worker.verification import GateSandbox, run_gates

_PROBE = Path(__file__).parent
_STAYING = {
    "processes: a child in its own session stays": "helix-probe-child",
    "processes: a child with a wiped environment stays": "helix-probe-scrubbed",
}


def _file(path: Path, content: str = "SECRET") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@contextlib.contextmanager
def _resolver() -> Iterator[int]:
    """A stand-in for a name server, which answers everything; its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    _, asker = server.recvfrom(512)
                    server.sendto(b"!", asker)

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


@contextlib.contextmanager
def _key() -> Iterator[str]:
    """A key in the keyring of this user, as another agent leaves one there; its name, empty where keys are refused."""
    name = f"helix-{secrets.token_hex(8)}"
    try:
        key = call("add_key", b"user", name.encode(), b"SECRET", 6, -4)
    except OSError:
        yield ""
        return
    try:
        yield name
    finally:
        call("keyctl", 9, key, -4)  # KEYCTL_UNLINK


@contextlib.contextmanager
def _segment() -> Iterator[int]:
    """A piece of memory that anybody of this user may attach; its key."""
    key = 1 + secrets.randbelow(2**31 - 1)
    number = LIBC.shmget(key, 4096, 0o1600)  # IPC_CREAT
    try:
        yield key
    finally:
        LIBC.shmctl(number, 0, ctypes.c_void_p())


@contextlib.contextmanager
def targets(folder: Path, guard: int) -> Iterator[dict[str, str]]:
    """Everything the probe tries to reach. ``folder`` is all its own, in ``/tmp``."""
    root = folder / "root"
    for name in (".env", ".helix/run.json", "src.py", ".git/hooks/pre-commit", "adr/ADR-001.md"):
        _file(root / name)
    sessions = root / "projects" / "sessions"
    for name in (
        "other/output/response.md",
        "s/context/a.md",
        ".spares/two/home/.claude.json",
        "s/output/.done",
        "s/status.json",
        "s/attempts/t-1-0/output/response.md",
    ):
        _file(sessions / name)
    home, tmp_file = folder / "home", _file(folder / "tmp.txt")
    _file(home / ".ssh" / "id")
    transcript = _file(sessions / "s" / ".run" / ".claude" / "projects" / "p" / "s.jsonl")
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
        ports = {
            name: str(listening(socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1])
            for name in ("relay", "broker_port", "flower", "model")
        }
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
            "session": str(sessions / "s"),
            "waiting": str(sessions / ".spares" / "two"),
            "home": str(home),
            "transcript": str(transcript),
            "tmp_file": str(tmp_file),
            "tmp_socket": str(tmp_socket),
            "broker": str(broker),
            "abstract": abstract,
            **ports,
            "resolver": str(stack.enter_context(_resolver())),
            "proxy": str(PROXY_PORT),
            "key": stack.enter_context(_key()),
            "segment": str(stack.enter_context(_segment())),
            "victim": str(victim.pid),
            "worker": str(worker.pid),
            "guard": str(guard),
        }


def reached(folder: Path, sandbox: str, *, ahead: bool = False) -> dict[str, bool]:
    """Let the probe try every way, and say which are open.

    Args:
        folder: an empty folder of this trial's own.
        sandbox: ``HELIX_SANDBOX``: ``off`` or ``required``.
        ahead: the sandbox is made before the session is known, as a spare's.
    """
    agents = AgentProcesses()
    try:
        with targets(folder, agents.start_guard()) as at:
            return _tried(folder, agents, at, sandbox, ahead=ahead)
    finally:
        agents.stop_guard()


def _tried(folder: Path, agents: AgentProcesses, at: dict[str, str], sandbox: str, *, ahead: bool) -> dict[str, bool]:
    workdir = Path(at["session"])
    own = workdir / "attempts" / "t-1-1"
    directory = workdir.parent / ".spares" / "one" if ahead else own
    at |= {"work": str(own)}
    _file(directory / "marks" / "Stop")
    (directory / "output").mkdir()
    order = order_in(workdir, f"probe-{os.getpid()}", directory=directory)
    settings = Settings(claude_api_url=f"http://127.0.0.1:{at['model']}", claude_api_key="SECRET-KEY", sandbox=sandbox)
    prefixes = [SandboxMount(Path(prefix)) for prefix in dict.fromkeys((sys.base_prefix, sys.prefix))]
    launch = Launch(
        argv=[sys.executable, "-S", "-P", "-m", "tests.lab.probe.ways"],
        env={"PATH": os.defpath, "PYTHONPATH": SOURCE_ROOT, "ANTHROPIC_API_KEY": settings.claude_api_key},
        stdin=None if ahead else json.dumps(at).encode(),
        binds=[
            *prefixes,
            SandboxMount(_PROBE),
            *(SandboxMount(folder / "__init__.py") for folder in _PROBE.parents[:2]),
            *(SandboxMount(Path(at["root"]) / name) for name in ("src.py", "adr")),
            SandboxMount(Path(at["transcript"]), writable=True),
            *([] if ahead else [SandboxMount(workdir / "context")]),
        ],
        sandbox=sandbox,
        outbound=allowed_destinations(settings, ""),
        proxy_env=proxy_environment(settings),
        bounds=ResourceLimits(tmp_mb=16),
    )
    transcript = EventReader()
    ending = (
        _ended_ahead(agents, launch, order, transcript.take_line, at)
        if ahead
        else ended(agents, launch, order, transcript.take_line)
    )
    assert transcript.result, (ending.exit, ending.stderr)
    found: dict[str, bool] = json.loads(transcript.text)
    assert list(found) == list(WAYS)
    found |= {name: bool(processes_with(child)) for name, child in _STAYING.items()}
    left = {"write: HELIX_ROOT": Path(at["root"]), "write: the folder above its own": own.parent}
    found |= {name: (folder / "way-out").exists() for name, folder in left.items()}
    return found | _from_outside(own, GateSandbox.from_settings(settings, operator=False))


def _ended_ahead(
    agents: AgentProcesses, launch: Launch, order: Order, take_line: Hear, at: dict[str, str]
) -> RunEnding:
    """Start the probe in a sandbox of nobody's, make it the session's as a spare's is made, and run it to the end."""
    own, waiting = Path(at["work"]), order.directory
    with contextlib.ExitStack() as held:
        begun = start_agent(agents, launch, order, Asked(), lambda _: None, take_line, held)
        assert isinstance(begun, StartedAgent)
        waiting.rename(own)
        waiting.symlink_to(own)
        process = begun.supervision.process
        assert process.add_mounts([(str(own), True), (f"{at['session']}/context", False)], 30) == ""
        assert process.write_input(json.dumps(at).encode(), 30)
        process.close_input()
        return begun.build_ending(begun.supervision.watch_agent())


def _from_outside(directory: Path, fence: GateSandbox) -> dict[str, bool]:
    """What became of what it left: what the worker reads of it, and what a user's gate runs."""
    output = directory / "output"
    reading = threading.Thread(target=lambda: read.update(read_accepted_files(directory)), daemon=True)
    read: dict[str, str] = {}
    reading.start()
    reading.join(60)
    held_up = reading.is_alive()
    for path in output.iterdir():
        if path.name != "test_way.py":
            path.unlink()
    phase = Phase.from_dict({"id": "p", "description": "d", "quality_gate": "tests_pass"})
    return {
        "output: a link to another session's answer": "SECRET" in read.get("response.md", ""),
        "output: another name of another session's answer": "SECRET" in read.get("ADR-1.md", ""),
        "output: a FIFO that holds the worker up": held_up,
        "gate: a test that reads another session": run_gates(phase, output, fence=fence).passed,
    }
