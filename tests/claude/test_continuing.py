"""Which agent session a run continues, what the model is told, and what a killed run leaves: with the real CLI."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.turns.record.transition import Answer
from tests.claude.endings import SLOW
from tests.claude.running import Agent, at_first_output
from tests.claude.stub import Stub, says, told
from tests.runs import Ran
from worker.files import session
from worker.files.session_fence import open_fenced
from worker.runners.claude.cli_prompt import GERMAN

FIRST = ({"role": "user", "content": "Baue einen Zähler"},)
NEXT = (*FIRST, {"role": "assistant", "content": "Welchen?"}, {"role": "user", "content": "Einen roten"})


def heard(stub: Stub) -> list[str]:
    """The last conversation the model was told; without the CLI's own notes."""
    return [text for text in told(stub.requests[-1]) if not text.startswith("system: ")]


def first_answer(agent: Agent, **values: Any) -> Ran:
    agent.stub.replies = [says("Welchen?")]
    ran = agent.run(FIRST[0]["content"], **values)
    assert ran.verdict == "complete"
    return ran


def asked_again(agent: Agent, base: Ran, **values: Any) -> Ran:
    return agent.run(
        "Es fehlt der Marker.", attempt=2, messages=FIRST, agent_session=base.result.agent_session, **values
    )


def test_feedback_goes_into_the_conversation_that_needs_it(agent: Agent) -> None:
    base = first_answer(agent)
    again = asked_again(agent, base)
    assert again.verdict == "complete"
    assert heard(agent.stub) == [
        f"user: {GERMAN.message}\n\nBaue einen Zähler",
        "assistant: Welchen?",
        f"user: {GERMAN.feedback}\n\nEs fehlt der Marker.",
    ]
    assert again.result.agent_session != base.result.agent_session


def test_a_killed_run_leaves_no_trace_in_the_conversation(agent: Agent) -> None:
    base = first_answer(agent)
    agent.stub.replies = [SLOW, says("Fertig.")]
    killed = asked_again(agent, base, when=at_first_output(signal.SIGKILL))
    assert (killed.verdict, killed.result.agent_session) == ("incomplete", "")
    assert asked_again(agent, base).verdict == "complete"
    assert len(heard(agent.stub)) == 3
    assert "noch" not in "".join(heard(agent.stub))


def test_what_a_continued_run_cost_is_its_own(agent: Agent) -> None:
    base = first_answer(agent)
    again = asked_again(agent, base)
    assert base.result.usage["cost_usd"] > 0
    assert again.result.usage == pytest.approx(base.result.usage)


def accepted(ran: Ran, response: str) -> None:
    request = TurnRequest(model="m", messages=FIRST, session_id="s", locale="de")
    turn = Turn(turn_id="t", epoch="", state=TurnState.VALIDATING, request=request)
    answer = Answer(response=response, step="what", step_source="marker")
    with open_fenced(ran.order.workdir) as holder:
        session.record_acceptance(holder, turn, answer, agent_session=ran.result.agent_session)


def test_the_next_message_continues_from_the_last_accepted_answer(agent: Agent) -> None:
    accepted(first_answer(agent), "Welchen?\n\n<!-- STEP: what -->")
    ran = agent.run("Einen roten", messages=NEXT)
    assert ran.evidence["continued"] == "history"
    assert heard(agent.stub)[1:] == ["assistant: Welchen?", f"user: {GERMAN.message}\n\nEinen roten"]


def test_instructions_that_came_during_the_conversation_reach_the_session_that_continues(agent: Agent) -> None:
    accepted(first_answer(agent), "Welchen?")
    ran = agent.run("Einen roten", messages=(*NEXT[:2], {"role": "system", "content": "Duze mich."}, NEXT[2]))
    assert ran.evidence["continued"] == "dialogue"
    now = f"{GERMAN.instructions}\n\nVorgabe: Duze mich."
    assert heard(agent.stub)[1:] == ["assistant: Welchen?", f"user: {now}\n\n{GERMAN.message}\n\nEinen roten"]


def test_an_edited_conversation_starts_afresh_and_is_told_all_of_it(agent: Agent) -> None:
    accepted(first_answer(agent), "Welchen?")
    edited = ({"role": "user", "content": "Baue eine Uhr"}, *NEXT[1:])
    agent.run("Einen roten", messages=edited)
    (only,) = heard(agent.stub)
    assert (
        only
        == f"user: {GERMAN.history}\n\nNutzer: Baue eine Uhr\n\nConsultant: Welchen?\n\n{GERMAN.message}\n\nEinen roten"
    )


def test_a_lost_agent_session_is_replaced_by_a_fresh_one_that_is_told_all(agent: Agent) -> None:
    base = first_answer(agent)
    (agent.workdir / "agent" / f"{base.result.agent_session}.jsonl").unlink()
    assert asked_again(agent, base).verdict == "complete"
    assert heard(agent.stub) == [
        f"user: {GERMAN.message}\n\nBaue einen Zähler\n\n{GERMAN.feedback}\n\nEs fehlt der Marker."
    ]


def test_a_transcript_the_cli_refuses_is_put_aside(agent: Agent) -> None:
    base = first_answer(agent)
    (agent.workdir / "agent" / f"{base.result.agent_session}.jsonl").write_text("nonsense\n")
    assert asked_again(agent, base).verdict == "session_lost"
    assert asked_again(agent, base).verdict == "complete"


def test_parallel_sessions_never_mix(agent: Agent, tmp_path: Path) -> None:
    agent.stub.chosen = {name: says(f"Antwort {name}", delay=0.3) for name in ("eins", "zwei", "drei")}
    agent.stub.replies = [says("keine")]
    together = threading.Barrier(3)

    def talk(name: str) -> None:
        own = replace(agent, session=name)
        together.wait(120)
        base = own.run(f"Ich bin {name}")
        ran = own.run(f"Weiter, {name}", attempt=2, agent_session=base.result.agent_session)
        assert (base.result.text, ran.result.text) == (f"Antwort {name}", f"Antwort {name}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(talk, agent.stub.chosen))
    for request in agent.stub.requests:
        names = {name for name in agent.stub.chosen for text in told(request) if f" {name}" in text}
        assert len(names) == 1
