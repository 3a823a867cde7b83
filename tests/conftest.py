"""Fixtures: a real broker, settings with short timings, and an installation of real processes."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
import structlog
from celery.worker.control import Panel
from kombu.transport.redis import Channel, Transport

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.store import store
from api_client.web import intake
from tests.constants import Constants
from tests.fault.clusters import ClusterSetUp
from tests.installation import Installation, WorkerProcess, settings_on
from tests.plain import plain_environment
from tests.tiers import (  # noqa: F401 - hooks of pytest
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_terminal_summary,
)
from worker.processes.broker import EmbeddedBroker, ServerBinary, read_version
from worker.runners.sandbox.processes import AgentProcesses

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
            patched.setattr(intake, "SUBMIT_SECONDS", 60.0)
        yield


def _server() -> ServerBinary | None:
    """The server to test on: the embedded one, or what ``TESTS_SERVER`` names (``tests.servers``)."""
    path = os.environ.get("TESTS_SERVER")
    return ServerBinary(Path(path), read_version(Path(path)), "TESTS_SERVER") if path else None


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One server for the whole run. Tests keep apart by their namespace; do not kill this one."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), server=_server()) as server:
        yield server


@pytest.fixture
def private_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A server of this test's own: ``kill()`` and ``start()`` bring it back on the same data."""
    with EmbeddedBroker(tmp_path / "private-broker", server=_server()) as server:
        yield server


@pytest.fixture(scope="session")
def store_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSetUp | None]:
    """The cluster to test on, if ``tests.servers`` asks for one: the broker stays what it is."""
    if not os.environ.get("TESTS_CLUSTER"):
        yield None
        return
    made = ClusterSetUp(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def settings(broker: EmbeddedBroker, store_cluster: ClusterSetUp | None, tmp_path: Path) -> Settings:
    """Settings of this test's own, on the shared broker."""
    made = settings_on(broker, tmp_path / "root")
    if store_cluster:
        return replace(made, store_url=store_cluster.url)
    return made


@pytest.fixture
def private_settings(settings: Settings, private_broker: EmbeddedBroker) -> Settings:
    """``settings`` on ``private_broker``."""
    return replace(settings, broker_url=private_broker.url, store_url=private_broker.url)


@pytest.fixture(scope="module")
def agents() -> Iterator[AgentProcesses]:
    """What starts and watches agents, where a test runs them in its own process."""
    made = AgentProcesses()
    made.start_guard()
    yield made
    made.stop_guard()


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Constants:
    """Changes constants: ``constants("api_client.web.identity.access", TURNS_PER_MINUTE=2)``."""
    return Constants(monkeypatch)


@pytest.fixture
async def installation(settings: Settings) -> AsyncIterator[Installation]:
    """Workers, relays, commands and a client under ``settings``: see the class."""
    made = Installation(settings)
    yield made
    await made.close()


@pytest.fixture
async def client(installation: Installation) -> TurnsClient:
    """A client of ``installation``, closed with it."""
    return installation.client


@pytest.fixture
def worker_process(installation: Installation) -> Callable[..., WorkerProcess]:
    """Starts real workers: ``worker_process()``, or ``worker_process("--foreground", settings=other)``."""
    return installation.worker
