"""The real programs against a stub of their service: `make e2e-agents` installs and runs them."""

import json
import os
import signal
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.tool_call_replies import reply_answered
from api_client.contract.tool_calls import ToolQuestion
from tests.agents.running import RUNNERS, Agent, program_of
from tests.agents.stub import Services, StubReply, calls, fails, says
from tests.runs import Asked
from tests.support import processes_with, wait_for
from worker.runners.base import ToolOrders
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.guard_client import AgentProcesses

pytestmark = pytest.mark.long

#: What a service may answer -> the verdicts that are right for it. Kept short: the kit has them all.
ENDINGS: dict[str, tuple[StubReply, set[str]]] = {
    "whole": (says("Hel", "lo ", "world"), {"complete"}),
    "output limit": (says("half ", end="limit"), {"limit"}),
    "empty": (says(), {"incomplete"}),
    "cut in the middle": (says("half ", "of it ", cut="first"), {"incomplete", "transient"}),
    "no last event": (says("half ", cut="end"), {"incomplete", "transient"}),
    "400": (fails(400), {"permanent"}),
    "refused": (says("no ", end="refusal"), {"refused"}),
}


@pytest.fixture
def services() -> Iterator[Services]:
    with Services([says("Hello world")]) as found:
        yield found


@pytest.fixture
def agent(name: str, tmp_path: Path, agents: AgentProcesses, services: Services) -> Agent:
    settings: dict[str, Any] = {"agent_path": str(program_of(name))}
    if name == "gemini":
        settings["openai_url"] = services.url
    return Agent(root=tmp_path, runner=RUNNERS[name], agents=agents, stub=services, settings=settings)


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ending_is_seen_for_what_it_is(agent: Agent, services: Services, ending: str) -> None:
    reply, right = ENDINGS[ending]
    services.replies = [reply]
    ran = agent.run(idle_seconds=25.0)
    assert ran.verdict in right, (ran.reason, ran.evidence)
    if ending == "whole":
        assert (ran.result.text, ran.shown) == ("Hello world", "Hello world")
        assert ran.evidence["model_calls"]["certifiable"]
        assert ran.result.usage["output_tokens"] >= 7


def test_a_message_goes_on_from_the_last_and_its_home_is_the_new_one(agent: Agent, services: Services) -> None:
    """Where the agent cannot take its session up again it is given the conversation."""
    first = agent.run("Erste Frage")
    services.replies = [says("Zweite Antwort")]
    messages = ({"role": "user", "content": "Erste Frage"},)
    second = agent.run("Rückmeldung!", messages=messages, agent_session=first.result.agent_session)
    assert (second.verdict, second.result.text) == ("complete", "Zweite Antwort"), second.evidence
    asked = json.dumps(services.requests[-1], ensure_ascii=False)
    assert "Erste Frage" in asked
    assert "Rückmeldung!" in asked
    if first.result.agent_session:
        assert "Hello world" in asked
    assert "sk-stub" not in asked


def test_a_session_that_its_agent_does_not_know_is_lost_and_forgotten(agent: Agent, services: Services) -> None:
    first = agent.run("Erste Frage")
    if not first.result.agent_session:
        pytest.skip("this agent takes no session up again: each run is given the conversation")
    kept = agent.workdir / "agent" / f"{first.result.agent_session}.zip"
    with zipfile.ZipFile(kept) as packed:
        notes = json.loads(packed.read("helix-notes.json"))
    with zipfile.ZipFile(kept, "w") as packed:  # without its state
        packed.writestr("helix-notes.json", json.dumps(notes))
    second = agent.run("Noch einmal", agent_session=first.result.agent_session)
    assert second.verdict == "session_lost", (second.reason, second.evidence)
    assert not kept.exists()


def test_a_killed_agent_is_incomplete_and_a_cancelled_one_is_gone(agent: Agent, services: Services) -> None:
    services.replies = [says("half ", *["more "] * 4000, delay=0.05)]

    for stop, verdict in ((Asked(), "cancelled"), (Asked(), "incomplete")):
        services.requests.clear()
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(agent.run, stop=stop)
            wait_for(lambda: services.requests)
            if verdict == "cancelled":
                stop.reason = "cancelled"
            else:
                os.kill(min(processes_with(f"HELIX_AGENT_MARK=turn-{agent.root.parent.name}")), signal.SIGKILL)
            assert running.result().verdict == verdict


TOOLS = {
    "opencode": calls("bash", command="touch it-ran", description="x"),
    "qwen": calls("run_shell_command", command="touch it-ran", is_background=False),
    "kimi": calls("Bash", command="touch it-ran"),
    "gemini": calls("run_shell_command", command="touch it-ran"),
}


def test_a_tool_that_is_not_allowed_is_denied_and_one_that_is_runs_in_the_runs_folder(
    agent: Agent, services: Services, name: str
) -> None:
    if name not in TOOLS:
        pytest.skip("it asks nobody: its sandbox decides")
    services.replies = [says("with tools"), says("done")]
    services.tool = TOOLS[name]
    ran = agent.run()
    assert list(agent.root.rglob("it-ran")) == []
    assert ran.evidence["denied"], (ran.reason, ran.evidence)
    agent.settings["agent_allow"] = ("execute",)
    second = agent.run(agent_session=ran.result.agent_session)
    assert second.verdict == "complete", (second.reason, second.evidence)
    assert [path.parent for path in agent.root.rglob("it-ran")] == [second.order.directory]


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_a_call_that_a_person_is_asked_about_runs_only_after_a_yes(
    agent: Agent, services: Services, name: str, answer: str
) -> None:
    if name not in TOOLS:
        pytest.skip("it asks nobody: its sandbox decides")
    services.replies = [says("done")]
    services.tool = TOOLS[name]
    orders = ToolOrders(rules=({"tool": "execute", "do": "ask"},), root=agent.root)
    first = agent.run(tools=orders)
    assert list(agent.root.rglob("it-ran")) == []
    if name in {"kimi", "gemini"}:  # they do not show what they would run
        assert (first.verdict, bool(first.evidence["denied"])) == ("complete", True), (first.reason, first.evidence)
        return
    asked = first.result.interruption.asked
    assert (first.verdict, asked["tool"]) == ("asks", "execute"), (first.reason, first.evidence)
    assert asked["arguments"]["command"] == "touch it-ran"
    answered = replace(first.result.interruption, answer=answer, delivery=1)
    tools = replace(orders, said=reply_answered("de", answered))
    second = agent.run(agent_session=first.result.agent_session, tools=tools, interruption=answered)
    told = json.dumps(services.requests[-1], ensure_ascii=False)
    assert ToolQuestion.from_interruption(answered).words in told or answer == "reject"
    assert bool(list(second.order.directory.rglob("it-ran"))) is (answer == "approve"), (second.reason, second.evidence)
    assert second.verdict == "complete" or answer == "reject", "behind a refused call opencode and Qwen say no more"


@pytest.mark.parametrize("spelled", ["touch\tit-ran", "t''ouch it-ran", "sh -c 'touch it-ran'", "X=touch; $X it-ran"])
@pytest.mark.parametrize("name", ["opencode", "qwen"], indirect=True)
def test_no_spelling_of_a_denied_command_runs(agent: Agent, services: Services, name: str, spelled: str) -> None:
    services.replies = [says("done")]
    tool, given = TOOLS[name].tool
    services.tool = calls(tool, **(json.loads(given) | {"command": spelled}))
    agent.settings["agent_allow"] = ("execute",)
    rule = {"tool": "execute", "arguments": {"command": "touch *"}, "do": "deny"}
    ran = agent.run(tools=ToolOrders(rules=(rule,), root=agent.root))
    assert list(agent.root.rglob("it-ran")) == []
    assert ran.evidence["denied"], (ran.reason, ran.evidence)


def test_a_permission_is_answered_also_in_a_chats_second_message(agent: Agent, services: Services, name: str) -> None:
    if name not in TOOLS:
        pytest.skip("it asks nobody: its sandbox decides")
    agent.settings["agent_allow"] = ("execute",)
    first = agent.run()
    services.tool = TOOLS[name]
    second = agent.run("Und nun?", agent_session=first.result.agent_session)
    assert second.verdict == "complete", (second.reason, second.evidence)
    assert list(second.order.directory.rglob("it-ran"))


@pytest.mark.parametrize("name", ["opencode"], indirect=True)  # one file; the others would have to be below /opt
def test_an_agent_works_behind_the_filter_of_system_calls(agent: Agent, services: Services) -> None:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)
    agent.settings["sandbox"] = "required"
    ran = agent.run()
    assert (ran.verdict, ran.result.text, ran.evidence["sandbox"]) == ("complete", "Hello world", "bubblewrap"), (
        ran.reason
    )
