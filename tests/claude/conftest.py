from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from tests.claude.running import Agent, cli
from tests.claude.stub import Stub
from worker.runners.sandbox.guard_client import AgentProcesses


@pytest.fixture(scope="session")
def program() -> Path:
    path = cli()
    if path is None:
        pytest.skip("the Claude CLI is not installed here: `make e2e-claude` installs it")
    return path


@pytest.fixture(scope="session")
def agents(program: Path) -> Iterator[AgentProcesses]:
    agents = AgentProcesses()
    agents.start_guard()
    yield agents
    agents.stop_guard()


@pytest.fixture
def agent(program: Path, agents: AgentProcesses, tmp_path: Path) -> Iterator[Agent]:
    with Stub() as stub:
        yield Agent(tmp_path, stub, agents, program)


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as stub:
        yield stub


@pytest.fixture
def claude_settings(settings: Settings, program: Path, stub: Stub) -> Settings:
    return replace(
        settings,
        models={"helix-consultant": "claude_cli"},
        claude_path=str(program),
        claude_api_url=stub.url,
        claude_api_key="sk-stub",
        claude_spares=0,  # a test knows all processes
        transient_delay_seconds=0.1,
    )
