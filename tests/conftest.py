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
from api_client.web.intake import turn_submission
from tests.constants import Constants
from tests.fault.clusters import ClusterSetUp
from tests.installation import Installation, WorkerProcess, settings_on
from tests.plain import plain_environment
from tests.tiers import (  # noqa: F401 - hooks of pytest
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_terminal_summary,
)
from worker.processes.embedded_broker import EmbeddedBroker, ServerBinary, read_version
from worker.runners.sandbox.guard_client import AgentProcesses

plain_environment()

# A commit's tests are the same in each run. `make properties` looks for new examples.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("new", print_blob=True, deadline=None)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Restore the logging configuration that a command in this process changed."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def _kombu_as_it_was() -> Iterator[None]:
    """Restore how kombu reads queues, which an engine in this process changed."""
    changed = ((Channel, "_brpop_start"), (Channel, "_brpop_read"), (Transport, "brpop_timeout"))
    before, commands = [getattr(*each) for each in changed], dict(Panel.data)
    yield
    for (owner, name), value in zip(changed, before, strict=True):
        setattr(owner, name, value)
    Panel.data.clear()
    Panel.data.update(commands)


@pytest.fixture(autouse=True)
def _patient_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give clients in this process long timeouts, unless the test is marked ``impatient``."""
    with pytest.MonkeyPatch.context() as patched:  # one of its own: a test's own is to be undone when the test says
        if request.node.get_closest_marker("impatient") is None:
            for name in ("_CONNECT_SECONDS", "_ANSWER_SECONDS", "_PATIENCE_SECONDS"):
                patched.setattr(store, name, 60.0)
            patched.setattr(turn_submission, "SUBMIT_SECONDS", 60.0)
        yield


def _server() -> ServerBinary | None:
    """Return the server that TESTS_SERVER names (``tests.servers``), or None for the embedded one."""
    path = os.environ.get("TESTS_SERVER")
    return ServerBinary(Path(path), read_version(Path(path)), "TESTS_SERVER") if path else None


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Provide one server for the whole run. Tests use separate namespaces and must not kill this server."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), server=_server()) as server:
        yield server


@pytest.fixture
def private_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Provide a separate server for one test, which may ``kill()`` it and ``start()`` it again on the same data."""
    with EmbeddedBroker(tmp_path / "private-broker", server=_server()) as server:
        yield server


@pytest.fixture(scope="session")
def store_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSetUp | None]:
    """Provide the cluster to test on if TESTS_CLUSTER is set, otherwise None."""
    if not os.environ.get("TESTS_CLUSTER"):
        yield None
        return
    made = ClusterSetUp(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def settings(broker: EmbeddedBroker, store_cluster: ClusterSetUp | None, tmp_path: Path) -> Settings:
    """Provide settings for one test on the shared broker."""
    made = settings_on(broker, tmp_path / "root")
    if store_cluster:
        return replace(made, store_url=store_cluster.url)
    return made


@pytest.fixture
def private_settings(settings: Settings, private_broker: EmbeddedBroker) -> Settings:
    return replace(settings, broker_url=private_broker.url, store_url=private_broker.url)


@pytest.fixture(scope="module")
def agents() -> Iterator[AgentProcesses]:
    """Provide the object that starts and watches agents in the test's own process."""
    made = AgentProcesses()
    made.start_guard()
    yield made
    made.stop_guard()


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Constants:
    """Provide a function to change constants: ``constants("api_client.web.identity.access", TURNS_PER_MINUTE=2)``."""
    return Constants(monkeypatch)


@pytest.fixture
async def installation(settings: Settings) -> AsyncIterator[Installation]:
    """Provide workers, relays, commands and a client under ``settings``."""
    made = Installation(settings)
    yield made
    await made.close()


@pytest.fixture
async def client(installation: Installation) -> TurnsClient:
    return installation.client


@pytest.fixture
def worker_process(installation: Installation) -> Callable[..., WorkerProcess]:
    """Start real workers: ``worker_process()``, or ``worker_process("--foreground", settings=other)``."""
    return installation.worker
