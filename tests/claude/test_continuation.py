"""A Claude that breaks off in mid-answer goes on from there: the real CLI is told its text, and the answer is whole."""

import contextlib
import os
import signal
from collections.abc import Callable

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.claude.stub import Reply, Stub, says, told
from tests.installation import WorkerProcess
from tests.support import processes_with
from worker.runners.claude.cli_prompt import GERMAN

PIECES = [f"Satz {number} von zwanzig.\n" for number in range(1, 21)]
WHOLE = "".join(PIECES) + "\n<!-- STEP: done -->"


async def test_a_claude_that_breaks_off_is_told_its_text_and_goes_on(
    claude_settings: Settings, worker_process: Callable[..., WorkerProcess], stub: Stub
) -> None:
    rest = ["Satz 8 von zwanzig.\n", *PIECES[8:], "\n<!-- STEP: done -->"]
    stub.replies = [Reply(chunks=tuple(PIECES[:8]), hang_after=8), says(*rest)]
    worker_process(settings=claude_settings)
    async with TurnsClient(claude_settings) as client:
        request = TurnRequest(
            locale="de", model="helix-consultant", messages=({"role": "user", "content": "Zähle"},), session_id="s"
        )
        turn_id = await client.submitter.submit(request)
        shown = ""
        async for event in client.reader.follow_turn(turn_id):
            shown += str(event.data.get("text", "")) if event is not None and event.kind == "attempt.output" else ""
            if "Satz 8 von zwanzig." in shown:
                break
        for pid in processes_with(f"HELIX_AGENT_MARK={turn_id}."):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        turn = await client.reader.await_result(turn_id, timeout=60)
        attempts = await client.reader.read_attempts(turn_id)

    assert (turn.outcome, turn.response) == (Outcome.PASSED_AFTER_RETRY, WHOLE)
    assert [attempt.completion["verdict"] for attempt in attempts] == ["incomplete", "complete"]
    so_far = attempts[0].text
    assert so_far.startswith("".join(PIECES[:8]).rstrip())
    heard = next(text for text in reversed(told(stub.requests[-1])) if text.startswith(f"user: {GERMAN.message}"))
    before = f"user: {GERMAN.message}\n\nZähle\n\n{GERMAN.so_far}\n\n{so_far}"
    assert heard == f"{before}\n\n{GERMAN.feedback}\n\n{attempts[1].prompt}"
    assert (claude_settings.sessions_dir / "s/output/response.md").read_text() == WHOLE
