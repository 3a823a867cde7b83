"""One object store for all tests of a process; each test has its own namespace in it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from tests.objects.seaweedfs import ObjectServer, seaweedfs


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with seaweedfs(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture
def server(_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """The server, whose credentials are in the environment."""
    for name, value in _server.environment.items():
        monkeypatch.setenv(name, value)
    return _server


@pytest.fixture
def away(settings: Settings, server: ObjectServer, tmp_path: Path) -> Settings:
    """Settings whose sessions' files lie in the object store."""
    return replace(settings, files=server.files, files_endpoint=server.url, transient_delay_seconds=0.01)
