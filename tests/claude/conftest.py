from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claude.running import Agent, cli
from tests.claude.stub import Stub
from worker.runners.processes import Processes


@pytest.fixture(scope="session")
def program() -> Path:
    path = cli()
    if path is None:
        pytest.skip("the Claude CLI is not installed here: `make test-claude` installs it")
    return path


@pytest.fixture(scope="session")
def agents(program: Path) -> Iterator[Processes]:
    agents = Processes()
    agents.start()
    yield agents
    agents.stop()


@pytest.fixture
def agent(program: Path, agents: Processes, tmp_path: Path) -> Iterator[Agent]:
    with Stub() as stub:
        yield Agent(tmp_path, stub, agents, program)
