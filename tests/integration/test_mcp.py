"""``turns run mcp`` with the official client: a turn as a tool, its key, its owner, and a call that comes twice."""

import pytest

pytest.importorskip("mcp")

from typing import Any

from mcp import Client

from tests.installation import Installation, RelayProcess, environ_of
from tests.mcp.tasks import server, turns_of

SCRIPT = """
- attempts: [[say: "Fine.\\n\\n<!-- STEP: done -->"]]
"""


@pytest.fixture
def relay(installation: Installation) -> RelayProcess:
    installation.play(SCRIPT, api_keys=("key-of-anna-0123456789", "key-of-berta-0123456789"))
    return installation.relay()


def face(installation: Installation, relay: RelayProcess, key: str = "key-of-anna-0123456789") -> Client:
    environ = environ_of(installation.settings, TURNS_KEY=key)
    return Client(server(relay.url, environ, "--patience", "60"))


async def called(client: Client, tool: str, meta: Any = None, **arguments: Any) -> Any:
    found = await client.call_tool(tool, arguments, meta=meta)
    return found.structured_content if not found.is_error else found.content[0].text


async def test_a_tool_call_is_a_turn_and_waits_for_its_answer_with_progress(
    installation: Installation, relay: RelayProcess
) -> None:
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with face(installation, relay) as client:
        working = await called(client, "submit_turn", message="good", wait_seconds=0)
        assert working["status"] == "working"
        installation.worker()
        found = await client.call_tool("submit_turn", {"message": "good"}, progress_callback=hear)
        assert (found.structured_content["status"], found.structured_content["attempts"]) == ("completed", 1)
        assert found.structured_content["answer"].startswith("Fine.")
        later = await called(client, "get_turn", turn_id=working["turn_id"], wait_seconds=60)
        assert later["status"] == "completed"
    assert heard == sorted(heard)


async def test_a_call_that_comes_twice_is_one_turn(installation: Installation, relay: RelayProcess) -> None:
    twice = {"claudecode/toolUseId": "toolu_1"}
    async with face(installation, relay) as client, face(installation, relay) as another:
        ids = {
            (await called(each, "submit_turn", meta=twice, message="good", wait_seconds=0))["turn_id"]
            for each in (client, another, client)
        }
        named = {
            (await called(each, "submit_turn", message="good", key="mine", wait_seconds=0))["turn_id"]
            for each in (client, another)
        }
        new = (await called(client, "submit_turn", message="good", wait_seconds=0))["turn_id"]
    assert (len(ids), len(named), len({*ids, *named, new}), turns_of(installation)) == (1, 1, 3, 3)


async def test_keys_and_owners_are_the_relays(installation: Installation, relay: RelayProcess) -> None:
    async with face(installation, relay) as anna, face(installation, relay, "key-of-berta-0123456789") as berta:
        turn_id = (await called(anna, "submit_turn", message="good", wait_seconds=0))["turn_id"]
        assert "turn_not_found" in await called(berta, "get_turn", turn_id=turn_id)
        assert "turn_not_found" in await called(berta, "cancel_turn", turn_id=turn_id)
        assert (await called(anna, "cancel_turn", turn_id=turn_id))["status"] == "cancelled"
        assert "model_not_found" in await called(anna, "submit_turn", message="good", model="nobody")
    async with face(installation, relay, "wrong-key-0123456789") as nobody:
        assert "invalid_api_key" in await called(nobody, "submit_turn", message="good")


def test_a_wrong_address_is_a_usage_error(installation: Installation) -> None:
    said = installation.command("run", "mcp", "--url", "localhost")
    assert (said.returncode, "--url must begin" in said.stderr) == (2, True)
