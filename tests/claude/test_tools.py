"""The real Claude CLI with tools of the gateway: it calls, waits for a person, and is not run twice."""

from pathlib import Path

import pytest

pytest.importorskip("mcp")

from api_client.contract.turn import Outcome
from tests.claude.stub import Stub, calls, says
from tests.installation import Installation
from tests.tools.running import counting, equip, reported, rows, told

pytestmark = pytest.mark.long

DONE = "Done.\n\n<!-- STEP: done -->"


def cli(installation: Installation, program: Path, stub: Stub, **more: object) -> Path:
    """Give the installation the CLI and the counting server. Return the server's file."""
    claude = {"models": {"m": "claude_cli"}, "claude_path": str(program), "claude_api_url": stub.url}
    server = counting(installation.settings.root, **more)
    return equip(installation, server, **claude, claude_api_key="sk-stub", claude_spares=0)


def results(stub: Stub) -> str:
    """Return the tool results that the model was given last."""
    return str(stub.requests[-1]["messages"])


async def test_the_cli_calls_a_tool_and_gets_its_result(installation: Installation, program: Path, stub: Stub) -> None:
    counts = cli(installation, program, stub, writes="allow")
    stub.replies = [
        calls("mcp__helix__counter__write", note="a"),
        calls("mcp__helix__counter__read"),
        says(DONE),
    ]
    installation.worker()
    turn = await installation.answer("count", model="m", validators=())
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert counts.read_text() == "a\n"
    assert "line 1" in results(stub)
    assert [(row["tool"], row["state"]) for row in rows(installation, turn.turn_id)] == [
        ("write", "done"),
        ("read", "done"),
    ]
    assert await reported(installation, turn.turn_id) == ["counter counter.write", "counter counter.read"], "each once"


async def test_the_cli_waits_for_a_person_and_goes_on_in_its_session(
    installation: Installation, program: Path, stub: Stub
) -> None:
    counts = cli(installation, program, stub)
    write = calls("mcp__helix__counter__write", note="a")
    stub.replies = [write, write, says(DONE)]
    installation.worker()
    turn_id = await installation.ask("count", model="m", validators=())
    await installation.until(turn_id, "suspended")
    assert not counts.exists()
    await installation.client.inbox.decide_turn(turn_id, "approve", by="ada")
    turn = await installation.result(turn_id)
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert counts.read_text() == "a\n"
    assert [row["state"] for row in rows(installation, turn_id)] == ["asked", "done"]
    assert "A person approved this call" in results(stub)
    assert turn.interruptions["tool_call"] == {"asked": 1}


async def test_an_answer_that_claims_a_record_that_no_call_made_is_rejected(
    installation: Installation, program: Path, stub: Stub
) -> None:
    counts = cli(installation, program, stub, writes="allow")
    stub.replies = [
        calls("mcp__helix__counter__read"),
        says("I created ticket OPS-12.\n\n<!-- STEP: done -->"),
        calls("mcp__helix__counter__write", note="OPS-12"),
        says("I created ticket OPS-12, as you asked.\n\n<!-- STEP: done -->"),
    ]
    path = installation.settings.root / "policy.yaml"
    path.write_text("rules: [{rule: claims}]\n")
    installation.change(policy=str(path))
    installation.worker()
    turn = await installation.answer("file it", model="m", validators=("claims",))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY, told(installation, turn)
    assert counts.read_text() == "OPS-12\n"
    attempts = await installation.client.reader.read_attempts(turn.turn_id)
    assert [[issue.code for issue in each.issues] for each in attempts] == [["CLAIMED_CALL_NOT_MADE"], []]
