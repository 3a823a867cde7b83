"""The client of ACP agents, with an agent that behaves as badly as real ones: unknown words, junk, silence, death."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.running import Agent
from tests.agents.stub import Services, says
from tests.runs import Asked, Ran
from tests.support import wait_for
from worker.plugins.acp import runner
from worker.plugins.acp.runner import KNOWN, parse_agent
from worker.runners.base import AgentEvent, Order, ToolOrders
from worker.runners.sandbox.guard_client import AgentProcesses

AGENT = Path(__file__).with_name("acp_agent.py")
_PIECE = "A piece that is long enough, "
_SAID = f"Hello {_PIECE}two."
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def agent(tmp_path: Path, agents: AgentProcesses) -> Iterator[Agent]:
    with Services([says("x")]) as services:
        yield Agent(root=tmp_path, runner="acp:mine.yaml", agents=agents, stub=services)


def played(agent: Agent, case: str, declared: dict[str, Any] | None = None, **values: Any) -> Ran:
    # In a declaration {name} is filled in: the case goes by a file.
    (agent.root / "case").write_text(case)
    given: dict[str, Any] = {"program": sys.executable, "arguments": [str(AGENT), str(agent.root / "case")]}
    given |= {"state": [".kept"], "environment": {"MODEL_URL": "{url}"}, **(declared or {})}
    (agent.root / "mine.yaml").write_text(json.dumps(given))
    return agent.run(**values)


@pytest.mark.parametrize(
    ("case", "verdict", "text"),
    [
        ("plain", "complete", "Hello world"),
        ("unseen", "incomplete", "Hello world"),
        ('stop="max_tokens"', "limit", "Hello world"),
        ('stop="max_turn_requests"', "limit", "Hello world"),
        ('stop="refusal"', "refused", "Hello world"),
        ('stop="cancelled"', "incomplete", "Hello world"),
        ('stop="content_filter"', "incomplete", "Hello world"),
        ("stop=null", "incomplete", "Hello world"),
        ("stop=[1]", "incomplete", "Hello world"),
        ("error=-32603", "incomplete", "Hello "),
        ("error=-32000", "config", "Hello "),
        ("login", "config", ""),
        ("version", "config", ""),
        ("leaves=killed", "incomplete", "Hello "),
        ("leaves=well", "incomplete", "Hello "),
        ("junk", "complete", "Hello world"),
        ("asks", "complete", "Hello -32601 -32601world"),
        ("late", "complete", "Hello late"),
        ("lingers", "complete", "Hello "),
        ("tool=completed", "complete", "Hello \n\nworld"),
        ("tool=failed", "complete", "Hello \n\nworld"),
        ("tool=in_progress", "incomplete", "Hello \n\nworld"),
        ('meta={"error": "quota"}', "incomplete", "Hello world"),
        ('meta={"error": {"message": "quota"}}', "incomplete", "Hello world"),
        ('meta={"usage": {}}', "complete", "Hello world"),
        # A message that comes whole behind its pieces; two messages; texts that really come twice.
        (f"chunks={json.dumps([['m', _PIECE], ['m', 'two.'], ['m', _PIECE + 'two.']])}", "complete", _SAID + "world"),
        (f"chunks={json.dumps([['m', _PIECE], ['n', _PIECE]])}", "complete", f"Hello {_PIECE}\n\n{_PIECE}world"),
        (f"chunks={json.dumps([['', 'ha'], ['', 'ha'], ['', 'haha']])}", "complete", "Hello hahahahaworld"),
        ("chunks=" + json.dumps([["", _PIECE], ["", f"Hello {_PIECE}"]]), "complete", f"Hello {_PIECE}world"),
    ],
)
def test_every_way_to_end_gets_its_verdict(agent: Agent, case: str, verdict: str, text: str) -> None:
    ran = played(agent, case)
    assert (ran.verdict, ran.result.text, ran.shown) == (verdict, text, text), (ran.reason, ran.evidence)


_SUMMARY = "This summary of the conversation is for the agent alone and no part of any answer at all."
_ANSWER = "Here is what you asked for."


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([["m", _SUMMARY], ["n", _ANSWER]], f"Hello {_ANSWER}world"),
        ([["m", _SUMMARY[:20]], ["m", _SUMMARY[20:]], ["n", _ANSWER]], f"Hello {_ANSWER}world"),
        ([["n", _ANSWER], ["m", _SUMMARY]], f"Hello {_ANSWER}world"),
        ([["n", f"{_ANSWER} {_SUMMARY}"]], f"Hello {_ANSWER} {_SUMMARY}world"),
        ([["n", _ANSWER]], f"Hello {_ANSWER}world"),
    ],
)
def test_the_text_of_a_call_beside_its_loop_is_no_part_of_the_answer(
    agent: Agent, said: list[list[str]], text: str
) -> None:
    agent.stub.replies = [says(_SUMMARY), says(_ANSWER)]  # type: ignore[union-attr]
    ran = played(agent, f"summary={json.dumps(said)}", declared={"side_calls": "without_tools"})
    assert (ran.verdict, ran.shown) == ("complete", ran.result.text)
    assert "".join(ran.result.text.split()) == "".join(text.split())
    plain = played(agent, f"summary={json.dumps(said)}")
    assert "".join(plain.result.text.split()) == "".join(f"Hello {''.join(piece for _, piece in said)}world".split())


def test_a_notice_of_the_agent_is_no_part_of_the_answer(agent: Agent) -> None:
    said = json.dumps([["", "Compacting…"], ["", "Compaction completed.\n- Tokens: 5"], ["", "Compacting… is a word."]])
    ran = played(agent, f"chunks={said}", declared={"notices": ["Compacting…", "Compaction completed.*"]})
    assert (ran.verdict, ran.result.text) == ("complete", "Hello Compacting… is a word.world")


def test_an_agent_that_others_killed_is_lost_not_broken(agent: Agent) -> None:
    assert played(agent, "leaves=killed").result.completion.killed_from_outside


@pytest.mark.parametrize(
    ("call", "allow", "chosen"),
    [
        ({"kind": "execute"}, (), "reject_once"),
        ({"kind": "execute"}, ("execute",), "allow_once"),
        ({}, ("execute",), "reject_once"),
        ({"kind": "edit"}, (), "reject_once"),
        ({"kind": "edit", "locations": [{"path": "output/x.md"}]}, (), "allow_once"),
        ({"kind": "edit", "locations": [{"path": "output/x.md"}, {"path": "/etc/passwd"}]}, (), "reject_once"),
        ({"kind": "edit", "locations": [{"path": "../../x"}]}, (), "reject_once"),
        ({"kind": "edit", "locations": "x"}, (), "reject_once"),
    ],
)
def test_a_permission_is_denied_unless_it_is_allowed(
    agent: Agent, call: dict[str, Any], allow: tuple[str, ...], chosen: str
) -> None:
    agent.settings["agent_allow"] = allow
    ran = played(agent, f"permission={json.dumps(call)}")
    assert (ran.verdict, ran.result.text) == ("complete", f"Hello \n\n{chosen}world"), ran.evidence
    assert bool(ran.evidence["denied"]) is (chosen == "reject_once")


RULES = (
    {"tool": "execute", "arguments": {"command": "git log*"}, "do": "run"},
    {"tool": "execute", "arguments": {"command": "git push*"}, "do": "ask"},
    {"tool": "edit", "folder": "*secret*", "do": "deny"},
)


@pytest.mark.parametrize(
    ("call", "chosen"),
    [
        ({"kind": "execute", "rawInput": {"command": "git log -1"}}, "allow_once"),
        ({"kind": "execute", "rawInput": {"command": "git log; git push"}}, "reject_once"),
        ({"kind": "execute", "rawInput": {"command": "git push"}}, "reject_once"),
        ({"kind": "execute", "rawInput": {"command": "ls"}}, "allow_once"),
        ({"kind": "execute"}, "reject_once"),
        ({"kind": "edit", "locations": [{"path": "output/x.md"}]}, "allow_once"),
        ({"kind": "edit", "locations": [{"path": "output/secret.md"}]}, "reject_once"),
    ],
)
def test_the_policys_tools_come_before_what_is_allowed(agent: Agent, call: dict[str, Any], chosen: str) -> None:
    agent.settings["agent_allow"] = ("execute",)
    tools = ToolOrders(rules=RULES, root=agent.root, asks=False)
    ran = played(agent, f"permission={json.dumps(call)}", tools=tools)
    assert (ran.verdict, ran.result.text) == ("complete", f"Hello \n\n{chosen}world"), ran.evidence


def test_a_run_ends_with_a_call_that_a_person_is_to_be_asked_about(agent: Agent) -> None:
    call = {"kind": "execute", "rawInput": {"command": "git push"}}
    rules = (*RULES, {"tool": "execute", "do": "ask", "who": "operator", "wait_seconds": 9})
    ran = played(agent, f"permission={json.dumps(call)}", tools=ToolOrders(rules=rules, root=agent.root))
    asks = ran.result.interruption
    assert (ran.verdict, asks.asked["tool"], asks.asked["arguments"]) == ("asks", "execute", call["rawInput"])
    assert asks.wait_seconds == 3600, "that of the first rule that fits"
    unseen = played(agent, 'permission={"kind": "execute"}', tools=ToolOrders(rules=rules[3:], root=agent.root))
    assert "reject_once" in unseen.result.text, "nobody can say yes to a call that is not shown"


def test_a_run_that_may_only_read_edits_nothing(agent: Agent) -> None:
    call = {"kind": "edit", "locations": [{"path": "output/x.md"}]}
    assert "reject_once" in played(agent, f"permission={json.dumps(call)}", read_only=True).result.text


def test_usage_and_cost_are_those_of_the_run(agent: Agent) -> None:
    counted = {"input_tokens": 11, "output_tokens": 7}  # by the service; the agent names 3 and 4
    first = played(agent, "usage")
    assert first.result.usage == counted | {"cost_usd": 0.5}
    second = played(agent, "usage", prompt="again", agent_session=first.result.agent_session)
    assert second.result.usage == counted | {"cost_usd": 0.0}


def test_a_session_is_loaded_and_what_it_repeats_is_not_said_again(agent: Agent) -> None:
    first = played(agent, "plain")
    second = played(agent, "plain", prompt="again", agent_session=first.result.agent_session)
    assert (second.verdict, second.result.text) == ("complete", "Hello world")


def test_a_session_that_the_agent_forgot_is_lost(agent: Agent) -> None:
    first = played(agent, "plain")
    assert played(agent, "forgets", prompt="again", agent_session=first.result.agent_session).verdict == "session_lost"


def test_thoughts_are_a_sign_of_life_and_no_part_of_the_answer(agent: Agent) -> None:
    ran = played(agent, "thinks", idle_seconds=3.5)
    assert (ran.verdict, ran.result.text) == ("complete", "Hello world")


def test_an_image_of_the_message_reaches_the_agent(agent: Agent) -> None:
    name = f"image-{'0' * 16}.png"
    (agent.workdir / "input").mkdir(parents=True)
    (agent.workdir / "input" / name).write_bytes(PNG)
    assert played(agent, "images", prompt=f"Look at input/{name}").result.text == "Hello text imageworld"


def test_a_cancel_is_passed_on(agent: Agent) -> None:
    stop = Asked()

    def cancel(_event: AgentEvent, _order: Order) -> None:
        stop.reason = "cancelled"

    ran = played(agent, "hangs", when=cancel, stop=stop)
    assert ran.verdict == "cancelled"
    assert wait_for(lambda: (ran.order.directory / "cancelled").exists())


@pytest.mark.parametrize("name", KNOWN)
def test_our_declarations_are_read_and_ask_through_the_door(name: str) -> None:
    path = Path(runner.__file__).with_name(f"{name}.yaml")
    assert parse_agent(path.read_text(), str(path)).program.uses_model_proxy
