"""An installation for one test: its settings, its real processes, a client, and its store."""

import asyncio
import contextlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import httpx2
import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest
from api_client.web.app.relay_server import create_app
from tests.inline import offer
from tests.ports import free_port
from tests.support import alive, command_of, playing, processes_with, wait_for, wait_until
from tests.unit.web.conftest import caller
from worker.cli import main
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.own_programs import fetch_status


def environ_of(settings: Settings, **more: str) -> dict[str, str]:
    """Return the environment for a process under these settings, without the developer's own HELIX variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_") and name != "REDIS_URL"}
    environ = {**kept, **settings.to_environment(), "PYTHONUNBUFFERED": "1", **more}
    if any(runner.startswith("inline") for runner in settings.models.values()):
        offer(environ)
    return environ


def turns(*arguments: str) -> list[str]:
    """Return the command line of the installed ``turns``, run by this interpreter."""
    return [sys.executable, "-c", "from worker.cli import main; main()", *arguments]


def run(
    settings: Settings, *words: str, cwd: Path | None = None, stdin: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``turns`` with these words in a separate process and return its result."""
    given = environ_of(settings, **environ)
    return subprocess.run(
        turns(*words), env=given, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=300, check=False
    )


@asynccontextmanager
async def web(
    settings: Settings, client: TurnsClient | None = None, pack: Any = None, **headers: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """Provide an HTTP client of a relay in this process, over the real store."""
    app = create_app(settings, client, **({"pack": pack} if pack else {}))
    async with app.router.lifespan_context(app), caller(app, **headers) as http:
        yield http


def settings_on(broker: EmbeddedBroker, root: Path, **changes: Any) -> Settings:
    """Return settings with a namespace of its own, short timings and German texts.

    The lease has its default length, so that a machine that stutters does not cost a worker its turn. Tests that wait
    for a lease to expire set a shorter one.
    """
    root.mkdir(exist_ok=True)
    made = Settings(
        root=root,
        broker_url=broker.url,
        store_url=broker.url,
        namespace=f"test-{secrets.token_hex(6)}",
        reap_seconds=0.2,
        announce_seconds=0.5,
        ping_seconds=0.2,
        locale="de",
    )
    return replace(made, **changes)


class WorkerProcess:
    """A real ``turns run worker`` in a separate process, with its log."""

    def __init__(
        self, settings: Settings, number: int, arguments: tuple[str, ...] = (), within: Sequence[str] = ()
    ) -> None:
        state = settings.root / ".helix"
        state.mkdir(exist_ok=True)
        self.namespace = settings.namespace
        self.log_file = state / f"worker-{number}.log"
        self._ready = state / f"worker-{number}.ready"
        with self.log_file.open("ab") as output:
            self.process = subprocess.Popen(
                [*within, *turns("run", "worker", "--processes", "1", *arguments)],
                env=environ_of(settings, HELIX_AGENT_READY_FILE=str(self._ready)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the id of the ``turns run worker`` process, the supervisor of its processes."""
        return self.process.pid

    def wait_ready(self, seconds: float = 180.0) -> None:
        """Wait until its processes consume messages."""
        wait_for(lambda: self._ready.exists() or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.log_file.read_text()

    def children(self) -> dict[str, int]:
        """Return the ids of its processes by their numbers, ``"1"`` first."""
        found = {}
        for child in children_of(self.pid):
            command = command_of(child).decode().split("\0")
            if "-n" in command:
                name = command[command.index("-n") + 1].partition("@")[0]
                found[name.rpartition("-")[2]] = child
        return found

    def named(self, name: str) -> int | None:
        """Return the id of its process with this name (``worker-12-bcdf-1@host``), or None for another worker."""
        process = name.partition("@")[0].removeprefix("worker-")
        return self.children().get(process.rpartition("-")[2]) if process.startswith(f"{self.pid}-") else None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the supervisor; after SIGKILL, nothing of the worker may survive."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(60)

    def ask_to_end(self) -> None:
        """Ask the worker to end, as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()

    def await_end(self) -> None:
        """Wait until the worker has ended, or end it by force."""
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


def children_of(pid: int) -> list[int]:
    """Return the processes that all threads of this process have started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return found


def relay_answers(port: int) -> bool:
    """Return True once a relay answers. Cheap, because this is called often while the relay starts."""
    return fetch_status("127.0.0.1", port, "/healthz", seconds=10.0) == 200


class RelayProcess:
    """A real ``turns run relay`` on a port of its own, which can be killed and started again on the same port."""

    def __init__(self, settings: Settings, log: Path | None = None) -> None:
        self.settings, self.port = settings, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") if self.log else contextlib.nullcontext() as output:
            self.process = subprocess.Popen(
                turns("run", "relay", "--port", str(self.port)),
                env=environ_of(self.settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        wait_for(self.answers)

    def answers(self) -> bool:
        return relay_answers(self.port)

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait(60)


class Said(NamedTuple):
    """The result of a command that ran in this process."""

    returncode: int
    stdout: str
    stderr: str


def command(settings: Settings, *words: str, stdin: str = "") -> Said:
    """Run ``turns`` with these words in this process, which is faster, without a terminal."""
    out, err, code = io.StringIO(), io.StringIO(), 0

    def carry_out() -> None:
        nonlocal code
        try:
            main(list(words))
        except SystemExit as ended:
            code = int(ended.code or 0)

    given = mock.patch.dict(os.environ, environ_of(settings), clear=True)
    typed = mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
    with given, typed, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if asyncio._get_running_loop() is None:
            carry_out()
        else:  # a command has an event loop of its own
            thread = threading.Thread(target=carry_out)
            thread.start()
            thread.join()
    return Said(code, out.getvalue(), err.getvalue())


class Installation:
    """A broker's namespace, and the workers, relays and commands that a test starts on it. All of them end with it.

    The fixture ``installation`` makes one on the shared broker::

        async def test_a_turn_passes_and_is_shown(installation: Installation) -> None:
            installation.play('- attempts: [[say: "Hi. <!-- STEP: done -->"]]', budgets={"all": 1.0})
            worker = installation.worker()               # a real `turns run worker`; see WorkerProcess
            relay = installation.relay()                 # a real `turns run relay`; see RelayProcess
            turn = await installation.answer("hello")    # submitted and waited for
            assert turn.outcome == "passed"
            assert installation.run("show", turn.turn_id).returncode == 0     # `turns` as another process
            async with installation.web() as http:       # its pages and API in this process
                assert (await http.get("/overview")).status_code == 200

    ``play`` and ``change`` set what is started from then on; ``worker`` and ``relay`` also take changes for that one
    part. At the end a process that is left behind fails the test.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.workers: list[WorkerProcess] = []
        self.relays: list[RelayProcess] = []

    def change(self, **changes: Any) -> Settings:
        """Change the settings of everything that is started from now on."""
        self.settings = replace(self.settings, **changes)
        return self.settings

    def play(self, script: str, model: str = "scripted", **changes: Any) -> Settings:
        """Use one model whose agent plays this script (docs/scripted-agent.md), and change settings."""
        self.settings = playing(self.settings, script, model, **changes)
        return self.settings

    def worker(
        self,
        *arguments: str,
        wait: bool = True,
        within: Sequence[str] = (),
        settings: Settings | None = None,
        **changes: Any,
    ) -> WorkerProcess:
        """Start a worker; ``within`` is a command that starts it, for example in a separate namespace."""
        used = replace(settings or self.settings, **changes)
        worker = WorkerProcess(used, len(self.workers) + 1, arguments, within)
        self.workers.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    def relay(self, *, log: Path | None = None, **changes: Any) -> RelayProcess:
        relay = RelayProcess(replace(self.settings, **changes), log)
        self.relays.append(relay)
        relay.start()
        return relay

    def run(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``turns`` with these words in a separate process."""
        return run(self.settings, *words, cwd=cwd, **environ)

    def command(self, *words: str, stdin: str = "") -> Said:
        """Run the function ``command`` under the installation's settings."""
        return command(self.settings, *words, stdin=stdin)

    def web(self, client: TurnsClient | None = None, **headers: str) -> AbstractAsyncContextManager[httpx2.AsyncClient]:
        """Provide an HTTP client of a relay in this process."""
        return web(self.settings, client, **headers)

    @cached_property
    def client(self) -> TurnsClient:
        """Return a client, created on first use with the settings of that moment."""
        return TurnsClient(self.settings)

    async def ask(self, text: str = "hello", session: str = "s", **more: Any) -> str:
        """Submit a turn and return its id; ``more`` are fields of its ``TurnRequest``."""
        return await self.client.submitter.submit(asked(text, session, **more))

    async def result(self, turn_id: str) -> Turn:
        """Wait until the turn has ended, and return the turn."""
        return await self.client.reader.await_result(turn_id, timeout=120)

    async def answer(self, text: str = "hello", session: str = "s", **more: Any) -> Turn:
        """Submit a turn, wait until it has ended, and return the turn."""
        return await self.result(await self.ask(text, session, **more))

    async def until(self, turn_id: str, state: str) -> None:
        """Wait until the turn is in this state."""

        async def is_there() -> bool:
            return (await self.client.reader.read_turn(turn_id)).state == state

        await wait_until(is_there)

    def bury(self, worker: WorkerProcess, silent_seconds: float, **facts: Any) -> None:
        """Kill a worker, and backdate every worker's last report by ``silent_seconds`` with changed ``facts``.

        Living workers report again within seconds.
        """
        processes = worker.children().values()
        worker.kill()
        wait_for(lambda: not any(map(alive, processes)))  # none of them reports any more
        reports: Any = self.store.hgetall(self.keys.workers)
        for name, text in reports.items():
            said = json.loads(text)
            times = {each: said[each] - silent_seconds for each in ("at", "started_at")}
            self.store.hset(self.keys.workers, name, json.dumps(said | times | facts))

    @cached_property
    def store(self) -> redis.Redis:
        return redis.Redis.from_url(self.settings.redis_url)

    @property
    def keys(self) -> Keys:
        return Keys(self.settings.namespace)

    async def close(self) -> None:
        if "client" in self.__dict__:
            await self.client.close()
        self.stop()

    def stop(self) -> None:
        """End the processes and check that none is left."""
        for relay in self.relays:
            relay.kill()
        end_all(self.workers)
        if "store" in self.__dict__:
            self.store.close()
        for namespace in {worker.namespace for worker in self.workers}:
            _check_nothing_left(f"HELIX_NAMESPACE={namespace}")


@contextmanager
def installed(settings: Settings) -> Iterator[Installation]:
    """Provide an installation for several tests."""
    made = Installation(settings)
    try:
        yield made
    finally:
        made.stop()


def asked(text: str, session: str = "s", *, model: str = "scripted", **more: Any) -> TurnRequest:
    return TurnRequest(model=model, messages=({"role": "user", "content": text},), session_id=session, **more)


def _check_nothing_left(marker: str) -> None:
    try:
        wait_for(lambda: not processes_with(marker))
    except AssertionError:
        left = processes_with(marker)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        pytest.fail(f"processes were left running: {left}")
