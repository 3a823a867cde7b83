"""Real agents with skills and instruction files: their model hears of what is named, and of nothing else."""

import json
from pathlib import Path

import pytest

from tests.agents.running import RUNNERS, Agent, program_of
from tests.agents.stub import Services, says
from tests.guidance import CANARY, INSTRUCTION, SKILL, project
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.guard_client import AgentProcesses

pytestmark = pytest.mark.long


@pytest.mark.parametrize("sandbox", ["off", "required"])
def test_an_agents_model_hears_of_the_named_skills_and_instructions_alone(
    name: str, sandbox: str, tmp_path: Path, agents: AgentProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sandbox == "required" and (problem := bubblewrap.find_network_obstacle()):
        pytest.skip(problem)
    root, home = tmp_path / "root", tmp_path / "home"
    settings = project(root, home) | {"sandbox": sandbox, "agent_path": str((program_of(name) or tmp_path).resolve())}
    monkeypatch.setenv("HOME", str(home))
    with Services([says("A title"), says("Hello world")]) as stub:
        if name == "gemini":
            settings["openai_url"] = stub.url
        agent = Agent(root=root, runner=RUNNERS[name], agents=agents, stub=stub, settings=settings)
        ran = agent.run()
        asked = json.dumps(stub.requests)
    assert ran.verdict == "complete", (ran.reason, ran.evidence)
    assert SKILL in asked
    assert INSTRUCTION in asked
    assert sandbox == "off" or CANARY not in asked  # without a sandbox an agent reads what its user may
