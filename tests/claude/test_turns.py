"""Whole turns with the real CLI: through the queue, with a real worker, judged and asked again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.claude.endings import CUT_STDOUT, SLOW
from tests.claude.running import inside
from tests.claude.stub import Stub, says, told
from tests.installation import WorkerProcess
from tests.support import processes_with, wait_until
from worker.files.workspace import check_session_done
from worker.runners.claude.cli_prompt import GERMAN

GOOD = "Welchen?\n\n<!-- STEP: what -->"
FIRST = ({"role": "user", "content": "Baue einen Zähler"},)
NEXT = (*FIRST, {"role": "assistant", "content": "Welchen?"}, {"role": "user", "content": "Einen roten"})

Workers = Callable[..., WorkerProcess]


def request(*messages: dict[str, str]) -> TurnRequest:
    return TurnRequest(model="helix-consultant", messages=messages or FIRST, session_id="s", locale="de")


def heard(stub: Stub, call: int) -> list[str]:
    return [text for text in told(stub.requests[call]) if not text.startswith("system: ")]


async def test_an_answer_without_a_marker_is_asked_for_again_in_its_own_conversation(
    claude_settings: Settings, worker_process: Workers, stub: Stub
) -> None:
    stub.replies = [says("Welchen?"), says(GOOD), says("Gut.\n\n<!-- STEP: done -->")]
    worker_process(settings=claude_settings)
    async with TurnsClient(claude_settings) as client:
        turn = await client.reader.await_result(await client.submitter.submit(request()), timeout=60)
        attempts = await client.reader.read_attempts(turn.turn_id)
        session = claude_settings.sessions_dir / "s"
        assert (turn.outcome, turn.response, turn.step) == (Outcome.PASSED_AFTER_RETRY, GOOD, "what")
        assert check_session_done(session, attempt_id=json.loads((session / "output/.done").read_text())["attempt_id"])
        assert json.loads((session / "status.json").read_text())["step"] == "what"
        following = await client.reader.await_result(await client.submitter.submit(request(*NEXT)), timeout=60)
    assert heard(stub, 1)[:2] == [f"user: {GERMAN.message}\n\nBaue einen Zähler", "assistant: Welchen?"]
    assert heard(stub, 1)[2].startswith(f"user: {GERMAN.feedback}\n\n")
    assert [attempt.completion["verdict"] for attempt in attempts] == ["complete", "complete"]
    first, second = (attempt.sent for attempt in attempts)
    assert f"user: {first['messages'][0]['content']}" == heard(stub, 0)[-1]
    assert f"user: {second['messages'][0]['content']}" == heard(stub, 1)[2]
    assert (first["system"], second["continues"]) == ((session / "CLAUDE.md").read_text(), "message")
    assert turn.tokens_used == 36
    assert (following.outcome, heard(stub, 2)[-1]) == (Outcome.PASSED, f"user: {GERMAN.message}\n\nEinen roten")
    assert len(heard(stub, 2)) == 5


async def test_a_killed_worker_leaves_no_agent_and_its_turn_ends_elsewhere_once(
    claude_settings: Settings, worker_process: Workers, stub: Stub
) -> None:
    stub.replies = [SLOW, says(GOOD)]
    first = worker_process(settings=claude_settings)
    async with TurnsClient(claude_settings) as client:
        turn_id = await client.submitter.submit(request())
        async for event in client.reader.follow_turn(turn_id):
            if event is not None and event.kind == "attempt.output":
                break
        assert processes_with(f"HELIX_AGENT_MARK={turn_id}.")
        first.kill()
        await wait_until(lambda: not processes_with(f"HELIX_AGENT_MARK={turn_id}."))
        worker_process(settings=claude_settings)
        turn = await client.reader.await_result(turn_id, timeout=60)
        attempts = await client.reader.read_attempts(turn_id)
    assert (turn.outcome, turn.response) == (Outcome.PASSED, GOOD)
    assert [attempt.deliveries for attempt in attempts] == [2]
    assert heard(stub, -1) == [f"user: {GERMAN.message}\n\nBaue einen Zähler"]


async def test_an_answer_whose_stream_broke_is_passed_whole_to_every_reader(
    claude_settings: Settings, worker_process: Workers, stub: Stub
) -> None:
    """ADR-036's own bug: with standard output gone after 8 of 20 pieces, half the text was passed."""
    pieces = [f"Satz {number} von zwanzig.\n" for number in range(1, 21)]
    stub.replies = [says(*pieces, delay=0.02)]
    wrapper = claude_settings.root / "claude-cut"
    program = inside(claude_settings.root, Path(claude_settings.claude_path))
    wrapper.write_text(f"#!/bin/bash\nCLI={program}\n{CUT_STDOUT.format(most=8)}\n")
    wrapper.chmod(0o755)
    worker_process(settings=replace(claude_settings, claude_path=str(wrapper)))
    asked = TurnRequest(model="helix-consultant", messages=FIRST, session_id="s", validators=())
    async with TurnsClient(claude_settings) as client:
        turn = await client.reader.await_result(await client.submitter.submit(asked), timeout=60)
        (attempt,) = await client.reader.read_attempts(turn.turn_id)
        events = [event async for event in client.reader.follow_turn(turn.turn_id) if event is not None]
    shown = ""
    for event in events:
        shown = "" if event.kind == "attempt.reset" else shown + str(event.data.get("text", ""))
    assert turn.outcome is Outcome.PASSED
    assert turn.response == attempt.text == shown == "".join(pieces)
    assert attempt.completion["evidence"]["text_from"] == "transcript"
    assert (claude_settings.sessions_dir / "s/output/response.md").read_text() == turn.response


@pytest.mark.parametrize("kept", [{}, {"claude_warm_seconds": 60.0, "claude_spares": 1}], ids=["cold", "kept"])
async def test_a_first_message_that_was_edited_is_in_no_later_request_to_the_model(
    kept: dict[str, Any], claude_settings: Settings, worker_process: Workers, stub: Stub
) -> None:
    settings = replace(claude_settings, **kept)
    stub.replies = [says(GOOD)] * 5
    worker_process(settings=settings)

    async def asks(client: TurnsClient, *texts: str) -> tuple[bool, bool]:
        """Whether the words of the two branches are in what the model got."""
        messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
        turn = await client.reader.await_result(await client.submitter.submit(request(*messages)), timeout=90)
        assert turn.outcome is Outcome.PASSED
        whole = json.dumps(stub.requests[-1])
        return "WORT-EINS" in whole, "WORT-ZWEI" in whole

    async with TurnsClient(settings) as client:
        assert await asks(client, "WORT-EINS baue") == (True, False)
        assert await asks(client, "WORT-ZWEI baue") == (False, True)
        assert await asks(client, "WORT-ZWEI baue", GOOD, "und weiter") == (False, True)
        assert await asks(client, "WORT-EINS baue", GOOD, "andere Frage") == (True, False), "back to the other branch"
        assert await asks(client, "WORT-EINS baue", GOOD, "andere Frage", GOOD, "noch eine") == (True, False)
    assert len(stub.requests) == 5
