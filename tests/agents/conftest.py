import os

import pytest

from tests.agents.running import RUNNERS, program_of, with_node


@pytest.fixture(params=sorted(RUNNERS))
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an agent that is installed here; a test may name others by ``indirect``."""
    agent = str(request.param)
    if not os.environ.get("AGENTS"):
        pytest.skip("real agents run with `make e2e-agents`")
    if program_of(agent) is None:
        pytest.skip(f"{agent} is not installed here: `make e2e-agents` installs it, if npm is there")
    monkeypatch.setenv("PATH", with_node())
    return agent
