"""A run of the real CLI that finished before its worker was killed is adopted: the service is asked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.claude.stub import Stub, says
from tests.installation import WorkerProcess
from tests.support import wait_until


@pytest.mark.parametrize("point", ["agent.ended", "link.decided"])
async def test_a_finished_run_whose_worker_is_killed_is_not_paid_for_again(
    point: str, claude_settings: Settings, stub: Stub, tmp_path: Path, worker_process: Callable[..., WorkerProcess]
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    (points / point).write_text("kill")
    stub.replies = [says("Welchen?"), says("Welchen?\n\n<!-- STEP: what -->")]
    settings = replace(claude_settings, failpoint=str(points), lease_seconds=3.0)
    worker_process(settings=settings)
    async with TurnsClient(settings) as client:
        messages = ({"role": "user", "content": "Baue einen Zähler"},)
        turn_id = await client.submitter.submit(
            TurnRequest(model="helix-consultant", messages=messages, session_id="s")
        )
        await wait_until(lambda: (points / f"{point}.1").exists())
        turn = await client.reader.result(turn_id, timeout=60)
        first, second = await client.reader.attempts(turn_id)
    assert (turn.outcome, turn.delivery) == (Outcome.PASSED_AFTER_RETRY, 3)
    assert len(stub.requests) == 2, "the service was asked again for an answer that it had given"
    assert (first.text, first.last_delivery, second.last_delivery) == ("Welchen?", 1, 3)
    assert second.completion["evidence"]["continued"] == "message", "the retry goes on from the adopted run's session"
