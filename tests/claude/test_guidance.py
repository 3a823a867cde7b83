"""The real CLI with skills and instruction files: it uses what is named, sees nothing else, changes none of it."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claude.running import Agent
from tests.claude.stub import calls, says
from tests.claude.test_spares import prepare
from tests.guidance import CANARY, INSTRUCTION, SKILL, project, skill, write
from worker.runners.sandbox import bubblewrap
from worker.runners.warm import idle_agents


@pytest.fixture
def guided(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Agent:
    home = tmp_path / "home of the worker"
    agent.settings = project(agent.root, home) | {"sandbox": "off"}
    monkeypatch.setenv("HOME", str(home))
    return agent


@pytest.fixture
def sandboxed(guided: Agent) -> Agent:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)
    guided.settings["sandbox"] = "required"
    return guided


@pytest.fixture
def kept(sandboxed: Agent) -> Iterator[Agent]:
    sandboxed.settings |= {"claude_warm_seconds": 60.0}
    yield sandboxed
    idle_agents.shared_idle_agents().close()


def asked(agent: Agent) -> str:
    return json.dumps(agent.stub.requests)


@pytest.mark.parametrize("sandbox", ["off", "required"])
def test_the_model_hears_of_the_named_skill_and_instructions_and_loads_the_skill(
    guided: Agent, sandbox: str, request: pytest.FixtureRequest
) -> None:
    if sandbox == "required":
        request.getfixturevalue("sandboxed")
    data = guided.root / "team/skills/review/data.txt"
    guided.stub.replies = [calls("Skill", skill="review"), calls("Read", file_path=str(data)), says("Gut.")]
    ran = guided.run()
    assert (ran.verdict, ran.result.text) == ("complete", "Gut."), (ran.reason, ran.evidence)
    first = json.dumps(guided.stub.requests[0])
    assert SKILL in first
    assert INSTRUCTION in first
    assert f"{SKILL}, in full." in asked(guided)
    assert "inside" in json.dumps(guided.stub.requests[-1]["messages"][-1])
    assert CANARY not in asked(guided)
    assert INSTRUCTION in ran.result.sent.system


def test_a_shell_in_the_sandbox_sees_the_named_folders_alone_and_cannot_write_them(sandboxed: Agent) -> None:
    sandboxed.settings |= {"claude_tools": ("default",), "claude_allowed_tools": ("Bash",)}
    command = (
        f"cd {sandboxed.root}; find . -type f -not -path './projects/*' | sort; cat $(find / -name 'SKILL.md' -o -name "
        "'AGENTS.md' -o -name 'CLAUDE.md' -o -name other.md 2>/dev/null); "
        "for each in team/skills/review/SKILL.md team/house.md ~/.claude/skills/review/data.txt team/skills/new; "
        "do echo changed >$each && echo WRITTEN; done; rm -r team/skills/review && echo REMOVED"
    )
    hidden = f"echo {base64.b64encode(command.encode()).decode()} | base64 -d | bash 2>&1"
    sandboxed.stub.replies = [calls("Bash", command=hidden, description="look"), says("Gut.")]
    assert sandboxed.run().verdict == "complete"
    seen = json.dumps(sandboxed.stub.requests[-1]["messages"][-1])
    assert "./team/skills/review/SKILL.md" in seen
    assert "./team/house.md" in seen
    for word in (CANARY, "./team/more", "./skills", "./AGENTS.md", "WRITTEN", "REMOVED"):
        assert word not in seen, word
    assert seen.count("Read-only file system") >= 4
    assert (sandboxed.root / "team/skills/review/SKILL.md").read_text() == skill("review", SKILL)


@pytest.mark.parametrize("change", ["skill", "instructions", "new skill"])
def test_a_kept_agent_does_not_work_with_a_skill_or_instructions_of_before(kept: Agent, change: str) -> None:
    kept.stub.replies = [says("Gut.")]
    first = kept.run(owner="o")
    same = kept.run(owner="o", agent_session=first.result.agent_session)
    assert [first.evidence["start"], same.evidence["start"]] == ["cold", "warm"]
    new, name = kept.root / "team/skills/second/SKILL.md", f"{change} of today"
    match change:
        case "skill":
            write(kept.root / "team/skills/review/SKILL.md", skill("review", name))
            os.utime(kept.root / "team/skills/review/SKILL.md", (1, 1))
        case "instructions":
            write(kept.root / "team/house.md", name)
        case _:
            write(new, skill("second", name))
    ran = kept.run(owner="o", agent_session=same.result.agent_session)
    assert (ran.verdict, ran.evidence["start"]) == ("complete", "cold"), ran.reason
    assert name in json.dumps(kept.stub.requests[-1])


def test_a_process_started_ahead_has_the_skills_and_instructions_too(kept: Agent) -> None:
    kept.settings["claude_spares"] = 1
    kept.stub.replies = [says("Gut.")]
    assert prepare(kept)
    ran = kept.run(owner="o")
    assert (ran.verdict, ran.evidence["start"]) == ("complete", "spare"), ran.reason
    assert SKILL in asked(kept)
    assert INSTRUCTION in asked(kept)
    assert CANARY not in asked(kept)


def test_a_skill_that_is_gone_ends_the_run_with_its_name(guided: Agent) -> None:
    (guided.root / "team/skills/review/SKILL.md").unlink()
    ran = guided.run()
    assert (ran.verdict, ran.reason) == (
        "config",
        "skills: team/skills: no skill in it, which is a folder with SKILL.md",
    )
    assert guided.stub.requests == []
