"""Which earlier runs of an attempt a delivery looks at, to adopt one that had finished."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api_client.contract.tool_calls import WaitingCall
from api_client.contract.turn import Turn, TurnRequest, TurnState
from tests.runs import ordered
from worker.runners.base import Order
from worker.turns.agent_run import AgentRun

CALL = WaitingCall(call="c", tool="Bash", arguments={"command": "ls"}, digest="d", wait_seconds=60)


@pytest.mark.parametrize(
    ("asked_in", "answer", "used", "looked_at"),
    [
        (0, "", "", [4, 3, 2, 1]),
        (2, "approve", "nonce", [4, 3]),
        (4, "approve", "nonce", []),
        (2, "reject", "", [4, 3]),
        (2, "approve", "", []),
        (1, "approve", "", []),
    ],
    ids=["no question", "used up", "used up, nothing since", "refused", "an open yes", "an open yes, older"],
)
def test_neither_the_run_that_asked_nor_one_that_left_a_yes_unused_is_adopted(
    asked_in: int, answer: str, used: str, looked_at: list[int], tmp_path: Path
) -> None:
    request = TurnRequest(model="m", messages=(), session_id="s")
    turn = Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.RUNNING, request=request, delivery=5)
    if asked_in:
        asked = replace(CALL.to_interruption(), delivery=asked_in, answer=answer)
        turn = replace(turn, interruption=asked, answer_used=used)
    seen: list[tuple[int, bool]] = []

    def adopt(order: Order) -> None:
        seen.append((order.delivery, order.recorded))

    nothing: Any = SimpleNamespace()
    lease: Any = SimpleNamespace(claim=SimpleNamespace(turn=turn))
    runner: Any = SimpleNamespace(adopt=adopt)
    run = AgentRun(nothing, lease, [])
    assert run._find_finished_run(runner, ordered(tmp_path, turn.turn_id, 5, "Hallo", deadline=1e9)) is None
    assert seen == [(number, False) for number in looked_at]
