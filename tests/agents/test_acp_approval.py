"""A person answers for a tool call of an ACP agent: the run ends with the question, and another one goes on with it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnState
from tests.agents.stub import Services, says
from tests.approval_steps import Workers, killed_after_the_call, killed_before_the_call, submitted, waiting
from tests.support import processes_with, put, wait_until
from worker.processes.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.long
AGENT = Path(__file__).with_name("acp_agent.py")
POLICY = """
rules: []
tools: [{tool: execute, arguments: {command: "*"}, do: ask, wait_seconds: 600}]
"""


@pytest.fixture
def asking(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    root, points = settings.root, tmp_path / "points"
    root.mkdir(exist_ok=True)
    points.mkdir()
    (root / "policy.yaml").write_text(POLICY)
    with Services([says("x")]) as services:
        yield replace(
            settings,
            models={"helix": "acp:mine.yaml"},
            policy=str(root / "policy.yaml"),
            openai_url=f"{services.url}/v1",
            openai_api_key="sk-stub",
            sandbox="off",
            failpoint=str(points),
            lease_seconds=3.0,
            kill_grace_seconds=0.3,
        )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The file to which each run of a call adds a line."""
    return tmp_path / "runs"


def declare(
    asking: Settings,
    runs: Path,
    command: str = "git push",
    *,
    state: bool = True,
    case: str = "ruled",
    **environment: str,
) -> None:
    declared = {
        "program": sys.executable,
        "arguments": [str(AGENT), f"{case}={command}"],
        "environment": {"MODEL_URL": "{url}", "RUNS": str(runs), **environment},
        "state": [".kept"] if state else [],
    }
    (asking.root / "mine.yaml").write_text(json.dumps(declared))


@pytest.mark.parametrize("state", [True, False], ids=["loads its session", "begins afresh"])
@pytest.mark.parametrize(("kind", "said"), [("approve", "allow_once"), ("reject", "reject_once")])
async def test_nothing_is_held_while_a_person_thinks_and_the_call_runs_only_after_a_yes(
    asking: Settings, worker_process: Workers, runs: Path, kind: str, said: str, state: bool
) -> None:
    declare(asking, runs, state=state)
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        asked = turn.interruption.asked
        assert (asked["tool"], asked["arguments"]) == ("execute", {"command": "git push"})
        assert (turn.lease_until, turn.next) == (0, "")
        assert not processes_with(f"HELIX_AGENT_MARK={turn.turn_id}.")
        assert not runs.exists()
        await client.inbox.decide_turn(turn.turn_id, kind, by="alice", note="not today")
        turn = await client.reader.await_result(turn.turn_id, timeout=60)
        [attempt] = await client.reader.read_attempts(turn.turn_id)
    assert (turn.outcome, turn.interruption) == (Outcome.PASSED, None)
    assert turn.response.endswith(f"Hello \n\n{said} world")
    assert (runs.read_text() if runs.exists() else "") == ("git push\n" if kind == "approve" else "")
    told = json.dumps(attempt.sent)
    assert ("Make it now: execute (command: git push)" if kind == "approve" else "They write: not today") in told


@pytest.mark.parametrize("why", ["the agent does not know it", "it is gone", "it is damaged"])
async def test_an_agent_that_cannot_load_its_session_after_the_question_has_its_text_in_the_answer_once(
    asking: Settings, worker_process: Workers, runs: Path, why: str
) -> None:
    declare(asking, runs, **{"FORGETS": "1"} if "know" in why else {})
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        [kept] = asking.root.glob("projects/sessions/*/agent/*.zip")
        if "gone" in why:
            kept.unlink()
        elif "damaged" in why:
            kept.write_bytes(b"no archive")
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=60)
    assert (turn.outcome, turn.response.count("Hello")) == (Outcome.PASSED, 1), turn.response


async def test_an_agent_that_does_not_stop_is_ended_and_its_question_stays(
    asking: Settings, worker_process: Workers, runs: Path
) -> None:
    declare(asking, runs, "deaf")
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        assert not processes_with(f"HELIX_AGENT_MARK={turn.turn_id}.")


@pytest.mark.parametrize("point", ["agent.started", "permit.asked"])
async def test_a_worker_killed_before_the_call_ran_needs_no_second_yes(
    point: str, asking: Settings, worker_process: Workers, runs: Path, tmp_path: Path
) -> None:
    declare(asking, runs)
    turn = await killed_before_the_call(asking, worker_process, tmp_path / "points", point)
    assert turn.outcome is Outcome.PASSED
    assert runs.read_text() == "git push\n"


async def test_a_yes_waits_for_a_store_that_is_away(
    asking: Settings, private_broker: EmbeddedBroker, worker_process: Workers, runs: Path, tmp_path: Path
) -> None:
    asking = replace(asking, broker_url=private_broker.url, store_url=private_broker.url)
    declare(asking, runs)
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        put(tmp_path / "points" / "permit.asked", f"meet:{tmp_path / 'go'}")
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        await wait_until((tmp_path / "points" / "permit.asked.1").exists)
        private_broker.kill()
        (tmp_path / "go").touch()
        back_at = time.monotonic() + 2
        await wait_until(lambda: time.monotonic() > back_at)
        private_broker.start()
        turn = await client.reader.await_result(turn.turn_id, timeout=60)
        asked = [event for event in await client.reader.read_events(turn.turn_id) if event.kind == "turn.suspended"]
    assert (turn.outcome, len(asked), runs.read_text()) == (Outcome.PASSED, 1, "git push\n")


async def test_a_worker_killed_after_the_call_ran_asks_again_before_it_runs_twice(
    asking: Settings, worker_process: Workers, runs: Path
) -> None:
    declare(asking, runs, "then hang")
    turn = await killed_after_the_call(asking, worker_process, lambda: runs.exists() and runs.read_text())
    assert turn.outcome is Outcome.PASSED
    assert runs.read_text() == "then hang\n"


async def asked_after(client: TurnsClient, turn_id: str, at: float) -> float:
    async def asked() -> bool:
        turn = await client.reader.read_turn(turn_id)
        return turn.state is TurnState.SUSPENDED and turn.suspended_at > at

    await wait_until(asked)
    return (await client.reader.read_turn(turn_id)).suspended_at


async def test_of_calls_in_one_message_each_is_asked_about_and_none_stops_another(
    asking: Settings, worker_process: Workers, runs: Path
) -> None:
    declare(asking, runs, "one,two,three", case="several")
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id, at = await submitted(client), 0.0
        for number in range(3):
            at = await asked_after(client, turn_id, at)
            assert len(runs.read_text().split() if runs.exists() else []) == number
            await client.inbox.decide_turn(turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn_id, timeout=60)
    assert (turn.outcome, turn.interruptions) == (Outcome.PASSED, {"tool_call": {"asked": 3}})
    assert sorted(runs.read_text().split()) == ["one", "three", "two"]


async def test_a_call_is_asked_about_again_where_another_one_ran_before_it(
    asking: Settings, worker_process: Workers, runs: Path
) -> None:
    declare(asking, runs, "sh build.sh", case="first")
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id = await submitted(client)
        at = await asked_after(client, turn_id, 0.0)
        await client.inbox.decide_turn(turn_id, "approve", by="alice")
        await asked_after(client, turn_id, at)
        suspended = [each for each in await client.reader.read_events(turn_id) if each.kind == "turn.suspended"]
    assert (suspended[-1].data["reason"], runs.exists()) == ("asked_again", False)
