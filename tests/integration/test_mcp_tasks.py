"""The tasks extension of ``turns run mcp``, by the interface for extensions of the official client."""

import asyncio

import pytest

pytest.importorskip("mcp")

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

from api_client import api_keys as ring
from api_client.contract.owners import owner_of_name
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.installation import Installation, RelayProcess, environ_of
from tests.integration.engine import Bench
from tests.integration.test_approval import asked as questioned
from tests.integration.test_approval import went_on
from tests.mcp.tasks import server, turns_of
from worker.plugins.mcp.mcp_tasks import TASKS, build_task, read_decision

DONE = {"resultType": "complete"}
SCRIPT = """
- when: slow
  attempts: [[wait: 600]]
- attempts: [[say: "Fine.\\n\\n<!-- STEP: done -->"]]
"""


class Handed(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    taskId: str  # noqa: N815 - the wire's name


class Read(Result):
    model_config = ConfigDict(extra="allow")


async def asked(session: Any, method: str, **params: Any) -> dict[str, Any]:
    """What the server answers to a request of the extension."""
    named = type("Named", (RequestParams,), {"model_config": ConfigDict(extra="allow")})(**params)
    found = await session.send_request(Request[Any, Any](method=method, params=named), Read)
    return dict(found.model_extra or {})


class Tasks(ClientExtension):
    """Polls a task that it is handed until that has ended, as a client of the extension does."""

    identifier = TASKS

    def __init__(self) -> None:
        self.handed: list[str] = []
        self.seen: list[str] = []

    def claims(self) -> list[ResultClaim[Handed]]:
        return [ResultClaim(result_type="task", model=Handed, resolve=self.resolve)]

    async def resolve(self, handed: Handed, context: ClaimContext) -> CallToolResult:
        self.handed.append(handed.taskId)
        while True:
            task = await asked(context.session, "tasks/get", taskId=handed.taskId)
            self.seen.append(task["status"])
            if task["status"] == "completed":
                return CallToolResult.model_validate(task["result"])
            assert task["status"] == "working", task
            await asyncio.sleep(task["pollIntervalMs"] / 10_000)


@pytest.fixture
def relay(installation: Installation) -> RelayProcess:
    installation.play(SCRIPT, api_keys=("key-of-anna-0123456789", "key-of-berta-0123456789"))
    return installation.relay()


def face(
    installation: Installation, relay: RelayProcess, tasks: Tasks | None = None, key: str = "key-of-anna-0123456789"
) -> Client:
    environ = environ_of(installation.settings, TURNS_KEY=key)
    return Client(server(relay.url, environ), extensions=[tasks] if tasks else [])


async def test_a_client_with_the_extension_is_handed_the_turn_and_polls_it(
    installation: Installation, relay: RelayProcess
) -> None:
    tasks = Tasks()
    async with face(installation, relay, tasks) as client:
        calling = asyncio.create_task(client.call_tool("submit_turn", {"message": "good", "key": "mine"}))
        while len(tasks.seen) < 2:
            await asyncio.sleep(0.05)
        installation.worker()
        found = await calling
        assert found.structured_content
        assert found.structured_content["answer"].startswith("Fine.")
        assert found.structured_content["turn_id"] == tasks.handed[0]
        again = await client.call_tool("submit_turn", {"message": "good", "key": "mine"})
        assert again.structured_content == found.structured_content
        assert (len(set(tasks.handed)), turns_of(installation)) == (1, 1), "a call that comes twice is one task"
        refused = await client.call_tool("submit_turn", {"message": "good", "model": "nobody"})
        assert refused.is_error
        assert "model_not_found" in refused.content[0].text
    assert {*tasks.seen} == {"working", "completed"}
    async with face(installation, relay) as plain:
        found = await plain.call_tool("submit_turn", {"message": "good"})
        assert found.structured_content
        assert found.structured_content["status"] == "completed", "without it a call waits"


async def test_a_task_is_cancelled_and_is_its_owners_alone(installation: Installation, relay: RelayProcess) -> None:
    installation.worker()
    tasks = Tasks()
    async with (
        face(installation, relay, tasks) as anna,
        face(installation, relay, Tasks(), "key-of-berta-0123456789") as berta,
    ):
        handed = await anna.session.call_tool("submit_turn", {"message": "slow"}, allow_claimed=True)
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError, match="turn_not_found"):
                await asked(berta.session, method, taskId=handed.taskId)
        assert await asked(anna.session, "tasks/update", taskId=handed.taskId, inputResponses={"1": {}}) == DONE
        assert await asked(anna.session, "tasks/cancel", taskId=handed.taskId) == DONE
        while (await asked(anna.session, "tasks/get", taskId=handed.taskId))["status"] != "cancelled":
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("said", "kind"), [("approve", "approve"), ("reject", "reject")])
async def test_the_clients_user_answers_what_the_turn_asks_once(
    said: str, kind: str, bench: Bench, settings: Settings, tmp_path: Path
) -> None:
    settings = replace(settings, keys_file=str(tmp_path / "keys.json"))
    key = ring.add_key(settings.keys_path, ring.ApiKey(name="alice", hash="", owner="alice"))
    turn = await questioned(bench, owner=owner_of_name("alice"))
    relay = RelayProcess(settings)
    relay.start()
    try:
        async with Client(server(relay.url, environ_of(settings, TURNS_KEY=key)), extensions=[Tasks()]) as client:
            task = await asked(client.session, "tasks/get", taskId=turn.turn_id)
            [(name, form)] = task["inputRequests"].items()
            assert (task["status"], "git push" in form["params"]["message"]) == ("input_required", True)

            async def update(name: str, decision: str) -> None:
                responses = {name: {"action": "accept", "content": {"decision": decision}}}
                assert (
                    await asked(client.session, "tasks/update", taskId=turn.turn_id, inputResponses=responses) == DONE
                )

            await update(f"{turn.suspended_at - 60}", "approve")  # the answer to an earlier question
            assert (await bench.client.reader.read_turn(turn.turn_id)).state == "suspended"
            await update(name, said)
            await update(name, "approve" if said == "reject" else "reject")  # the first answer stays
            after = await went_on(bench, turn)
    finally:
        relay.kill()
    assert (after.outcome, after.decision.kind) == (Outcome.PASSED, kind)
    assert after.decision.by.startswith("key:"), "the answer is noted"


ASKED = {"call": "c", "tool": "Bash", "arguments": {"command": "ls"}, "digest": "d"}
QUESTION = {"kind": "tool_call", "asked": ASKED, "who": "owner", "delivery": 1}
SUSPENDED = {"turn_id": "t", "session_id": "s", "attempt": 1, "response": "", "state": "suspended", "created_at": 1.0}


def test_a_question_is_a_form_with_a_name_of_its_own_and_only_for_whom_it_is_for() -> None:
    task = build_task({**SUSPENDED, "suspended_at": 12.5, "interruption": QUESTION})
    [(name, form)] = task["inputRequests"].items()
    assert (task["status"], name, form["method"]) == ("input_required", "12.5", "elicitation/create")
    assert form["params"]["message"] == "May the agent do this?\nBash\ncommand: ls"
    for question in ({**QUESTION, "who": "operator"}, {}):
        other = build_task({**SUSPENDED, "suspended_at": 12.5, "interruption": question})
        assert (other["status"], "inputRequests" in other) == ("working", False)
        assert "a person has to decide" in other["statusMessage"]


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ({"action": "accept", "content": {"decision": "approve"}}, "approve"),
        ({"action": "accept", "content": {"decision": "reject"}}, "reject"),
        ({"action": "decline"}, "reject"),
        ({"action": "cancel", "content": {"decision": "approve"}}, ""),
        ({"action": "accept", "content": {"decision": "edit"}}, ""),
        ({"action": "accept"}, ""),
        ({}, ""),
    ],
)
def test_only_a_clear_yes_or_no_decides(response: dict[str, Any], said: str) -> None:
    assert read_decision(response, {"interruption": QUESTION}) == said
