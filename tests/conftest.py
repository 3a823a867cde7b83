"""Fixtures: a real broker, settings with short timings, and real worker processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
import structlog
from celery.worker.control import Panel
from kombu.transport.redis import Channel, Transport

from api_client.contract.settings import Settings
from api_client.store import store
from api_client.web.intake import submitting
from tests.inline import offer
from tests.plain import plain_environment
from tests.support import command_of, processes_with, wait_for
from tests.tiers import pytest_collection_modifyitems, pytest_terminal_summary  # noqa: F401 - hooks of pytest
from worker.processes.broker import EmbeddedBroker

plain_environment()

# A commit's tests are the same in each run. `make properties` looks for new examples.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("new", print_blob=True, deadline=None)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sets up logging: the next test must not go without its lines."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def _kombu_as_it_was() -> Iterator[None]:
    """An engine in this process changes how kombu reads each queue: the next test's clients must not read like that."""
    changed = ((Channel, "_brpop_start"), (Channel, "_brpop_read"), (Transport, "brpop_timeout"))
    before, commands = [getattr(*each) for each in changed], dict(Panel.data)
    yield
    for (owner, name), value in zip(changed, before, strict=True):
        setattr(owner, name, value)
    Panel.data.clear()
    Panel.data.update(commands)


@pytest.fixture(autouse=True)
def _patient_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """A client in this process waits for a store that a busy machine holds up, unless its impatience is the matter."""
    with pytest.MonkeyPatch.context() as patched:  # one of its own: a test's own is to be undone when the test says
        if request.node.get_closest_marker("impatient") is None:
            for name in ("_CONNECT_SECONDS", "_ANSWER_SECONDS", "_PATIENCE_SECONDS"):
                patched.setattr(store, name, 60.0)
            patched.setattr(submitting, "SUBMIT_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One server for the whole run. Tests keep apart by their namespace; do not kill this one."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def private_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A server of this test's own: ``kill()`` and ``start()`` bring it back on the same data."""
    with EmbeddedBroker(tmp_path / "private-broker") as server:
        yield server


@pytest.fixture
def settings(broker: EmbeddedBroker, tmp_path: Path) -> Settings:
    """Settings of this test's own: its own namespace and root, on the shared broker, with short timings, in German.

    The lease is the default, for a machine that stutters for a second or two must not cost a worker its turn. Tests in
    which a turn waits for a lease to run out set their own.
    """
    root = tmp_path / "root"
    root.mkdir()
    return Settings(
        root=root,
        broker_url=broker.url,
        store_url=broker.url,
        namespace=f"test-{secrets.token_hex(6)}",
        reap_seconds=0.2,
        announce_seconds=0.5,
        ping_seconds=0.2,
        worker_processes=1,
        web_port=0,
        flower_port=0,
        locale="de",
    )


@pytest.fixture
def private_settings(settings: Settings, private_broker: EmbeddedBroker) -> Settings:
    """``settings`` on ``private_broker``."""
    return replace(settings, broker_url=private_broker.url, store_url=private_broker.url)


def environ_of(settings: Settings, **more: str) -> dict[str, str]:
    """The environment for a process under these settings: theirs, and nothing of the developer's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_") and name != "REDIS_URL"}
    environ = {**kept, **settings.environ(), "PYTHONUNBUFFERED": "1", **more}
    if any(runner.startswith("inline") for runner in settings.models.values()):
        offer(environ)
    return environ


def turns(*arguments: str) -> list[str]:
    """The command line of the installed ``turns``, by this very interpreter."""
    return [sys.executable, "-c", "from worker.cli import main; main()", *arguments]


class WorkerProcess:
    """A real ``turns worker`` in a process of its own, with its log."""

    def __init__(self, settings: Settings, number: int, arguments: tuple[str, ...], within: Sequence[str] = ()) -> None:
        state = settings.root / ".helix"
        state.mkdir(exist_ok=True)
        self.log_file = state / f"worker-{number}.log"
        self._ready = state / f"worker-{number}.ready"
        with self.log_file.open("ab") as output:
            self.process = subprocess.Popen(
                [*within, *turns("worker", *arguments)],
                env=environ_of(settings, HELIX_AGENT_READY_FILE=str(self._ready)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the ``turns worker`` process (the supervisor of its processes)."""
        return self.process.pid

    def wait_ready(self, seconds: float = 180.0) -> None:
        """Wait until its processes consume."""
        wait_for(lambda: self._ready.exists() or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.log_file.read_text()

    def children(self) -> dict[str, int]:
        """Its processes by their numbers, ``"1"`` first, with their process ids."""
        found = {}
        for child in _children_of(self.pid):
            command = command_of(child).decode().split("\0")
            if "-n" in command:
                name = command[command.index("-n") + 1].partition("@")[0]
                found[name.rpartition("-")[2]] = child
        return found

    def named(self, name: str) -> int | None:
        """The process id of its process of that name (``worker-12-1@host``); None for a name of another worker."""
        supervisor, _, number = name.partition("@")[0].removeprefix("worker-").partition("-")
        return self.children().get(number) if supervisor == str(self.pid) else None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the supervisor; after SIGKILL nothing of it may survive."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(60)

    def ask_to_end(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()

    def await_end(self) -> None:
        """Wait until it has ended, or end it by force."""
        if self.process.poll() is None:
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(60)


def end_all(workers: Iterable[WorkerProcess]) -> None:
    """End workers, all at the same time."""
    ending = list(workers)
    for worker in ending:
        worker.ask_to_end()
    for worker in ending:
        worker.await_end()


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.fixture
def worker_process(settings: Settings) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts real workers: ``worker_process()``, or ``worker_process("--foreground", settings=other)``.

    ``within`` is a command that starts the worker, such as in a namespace of its own.

    At the end they are stopped, and a process that any of them left behind fails the test.
    """
    started: list[tuple[WorkerProcess, Settings]] = []

    def start(
        *arguments: str, settings: Settings = settings, wait: bool = True, within: Sequence[str] = ()
    ) -> WorkerProcess:
        worker = WorkerProcess(settings, len(started) + 1, arguments, within)
        started.append((worker, settings))
        if wait:
            worker.wait_ready()
        return worker

    yield start
    end_all(worker for worker, _ in started)
    for used in {settings.namespace: settings for _, settings in started}.values():
        _check_nothing_left(f"HELIX_NAMESPACE={used.namespace}")


def _check_nothing_left(marker: str) -> None:
    try:
        wait_for(lambda: not processes_with(marker))
    except AssertionError:
        left = processes_with(marker)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        pytest.fail(f"processes were left running: {left}")
