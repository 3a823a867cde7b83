"""Until its asker has the answer, a question stands for its turn; then it is a new one."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import pytest

from api_client.contract.errors import StoreUnavailable
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with, event, finished, passed

PAGE = {"x-owui-task": "", "x-owui-chat-id": "c1", "x-owui-message-id": "m1", "x-owui-user-message-id": "u1"}
BODY: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}


async def ask(turns: FakeTurns, **more: Any) -> httpx2.Response:
    async with caller(app_with(turns)) as http:
        return await http.post("/v1/chat/completions", json={**BODY, "stream": True, **more}, headers=PAGE)


def owed(turns: FakeTurns) -> FakeTurns:
    """The same turns, whose one answer was asked for before and has not arrived."""
    turns.new_id = lambda _: "t0-" + "6" * 32  # type: ignore[method-assign, assignment]
    turns.open_questions.claim = lambda *_, **__: _later(TURN_ID)  # type: ignore[method-assign]
    return turns


async def _later(value: str) -> str:
    return value


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [passed("Gut."), [finished(1, "failed", error={"message": "m"})]])
async def test_an_ending_that_was_sent_is_delivered(script: Any, stream: bool) -> None:
    turns = FakeTurns(script)
    await ask(turns, stream=stream)
    assert len(turns.submitted) == 1
    assert turns.open_questions.turns == {}


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), ValueError("bug")])
async def test_an_ending_that_was_lost_is_owed(fault: Exception) -> None:
    turns = FakeTurns([event(1, "turn.queued", position=0), fault])
    await ask(turns)
    assert list(turns.open_questions.turns.values()) == [turns.new_id("")[:-1] + "0"]


async def test_an_answer_that_is_owed_is_given_without_another_run() -> None:
    turns = owed(FakeTurns(passed("Gut.")))
    answer = await ask(turns)
    assert turns.submitted == []
    assert answer.headers["x-turn-id"] == TURN_ID
    assert answer.text.count('"delta":"Gut."') == 1


async def test_an_answer_nobody_came_for_is_not_kept_for_ever() -> None:
    turns = owed(FakeTurns(passed("Gut.")))
    turns.finished_at = time.time() - 901
    await ask(turns)
    assert len(turns.submitted) == 1


async def test_a_turn_without_an_answer_is_run_again() -> None:
    turns = owed(FakeTurns([finished(1, "error", error={"message": "m"})]))
    await ask(turns)
    assert len(turns.submitted) == 1


async def test_a_store_that_forgets_nothing_spoils_no_answer() -> None:
    turns = FakeTurns(passed("Gut."))

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    turns.open_questions.forget = away  # type: ignore[method-assign,assignment]
    answer = await ask(turns)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "error" not in answer.text


async def test_an_idempotency_key_alone_says_what_is_a_repeat() -> None:
    turns = FakeTurns(passed("Gut."))
    async with caller(app_with(turns)) as http:
        await http.post("/v1/chat/completions", json=BODY, headers={**PAGE, "idempotency-key": "k"})
    assert turns.keys == ["k"]
