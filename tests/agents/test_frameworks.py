"""The examples of Python agents with frameworks, in the Python of their own that `make e2e-agents` fills."""

import shutil
from pathlib import Path

import pytest

from tests.agents.running import Agent
from tests.agents.stub import Services, says
from worker.runners.sandbox.guard_client import AgentProcesses

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "agents"
PYTHON = ROOT / ".helix-tools" / "agents" / "python-frameworks" / "bin" / "python"


@pytest.mark.parametrize("example", ["with_pydantic_ai", "with_langgraph"])
def test_an_example_answers_through_its_framework(tmp_path: Path, agents: AgentProcesses, example: str) -> None:
    if not PYTHON.exists():
        pytest.skip("pydantic-ai and LangGraph are not installed here: `make e2e-agents` installs them")
    shutil.copytree(EXAMPLES, tmp_path / "library")
    with Services([says("All the ", "books.")]) as stub:
        agent = Agent(root=tmp_path, runner=f"library.{example}:librarian:m1", agents=agents, stub=stub)
        agent.settings["agent_path"] = str(PYTHON)
        ran = agent.run()
        assert (ran.verdict, ran.result.text) == ("complete", "All the books."), (ran.reason, ran.evidence)
        assert stub.requests[0]["model"] == "m1"
        assert ran.evidence["model_calls"]["certifiable"]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_fifteen_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= 15
