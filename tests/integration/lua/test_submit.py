"""What submit.lua stores, joins and refuses."""

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest, IdempotencyConflict, SessionBusy, StoreUnavailable
from api_client.contract.keys import Keys
from api_client.contract.turn import DoubleText, Outcome, TurnState, new_turn_id
from tests import records
from tests.integration.lua.by_hand import PASSED, claimed, request
from tests.on_loop import Ledger


async def test_a_submitted_turn_is_queued_with_its_first_event(client: TurnsClient) -> None:
    turn_id = await client.submitter.submit(request())
    turn = await client.reader.read_turn(turn_id)
    assert (turn.state, turn.next, turn.attempt, turn.seq) == (TurnState.QUEUED, "turn.run/1", 1, 1)
    assert turn.request == replace(
        request(), labels={"flow": "v2", "policy": turn.labels["policy"]}, template=turn.request.template
    )


async def test_a_new_record_has_no_field_that_is_empty_or_zero(client: TurnsClient, store: redis.Redis) -> None:
    turn_id = await client.submitter.submit(request(token_limit=900))
    stored: Any = store.hgetall(Keys(client.settings.namespace).turn(turn_id))
    assert stored[b"token_limit"] == b"900"
    assert [name for name, text in stored.items() if text in {b"", b"0"}] == []
    turn = await client.reader.read_turn(turn_id)
    assert (turn.delivery, turn.strikes, turn.labels["replay_of"], turn.retries) == (0, 0, "", 0)


async def test_submitting_the_same_turn_id_twice_stores_it_once(client: TurnsClient, store: redis.Redis) -> None:
    turn_id = new_turn_id()
    assert await client.submitter.submit(request(), turn_id=turn_id) == turn_id
    assert await client.submitter.submit(request(), turn_id=turn_id) == turn_id
    keys = Keys(client.settings.namespace)
    assert store.lrange(keys.session("s-1"), 0, -1) == [turn_id.encode()]
    assert records.counters(store, keys)["turn.submitted"] == 1


async def test_a_repeated_idempotency_key_answers_the_first_turn_and_another_body_conflicts(
    client: TurnsClient,
) -> None:
    first = await client.submitter.submit(request(), idempotency_key="k")
    assert await client.submitter.submit(request(), idempotency_key="k") == first
    with pytest.raises(IdempotencyConflict, match="'k'"):
        await client.submitter.submit(request("Anders"), idempotency_key="k")
    assert await client.submitter.submit(request(owner="other"), idempotency_key="k") != first


async def test_one_idempotency_key_is_one_turn_also_with_different_sessions(client: TurnsClient) -> None:
    asked = [request(session_id=f"s-{number}") for number in range(24)]
    answers = await asyncio.gather(
        *(client.submitter.submit(one, idempotency_key="k") for one in asked * 2), return_exceptions=True
    )
    [turn_id] = {answer for answer in answers if isinstance(answer, str)}
    assert len([answer for answer in answers if isinstance(answer, IdempotencyConflict)]) == 2 * len(asked) - 2
    turn = await client.reader.read_turn(turn_id)
    assert await client.submitter.submit(turn.request, idempotency_key="k") == turn_id


async def test_a_key_whose_turn_was_never_stored_is_good_for_the_repeat_and_interrupts_nothing_later(
    client: TurnsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(double_text=DoubleText.INTERRUPT)
    with monkeypatch.context() as patched:
        patched.setattr(client.store, "run_command", AsyncMock(side_effect=StoreUnavailable("down")))
        with pytest.raises(StoreUnavailable):
            await client.submitter.submit(asked, idempotency_key="k")
    turn_id = await client.submitter.submit(asked, idempotency_key="k")
    later = await client.submitter.submit(request("Später"))
    assert await client.submitter.submit(asked, idempotency_key="k") == turn_id
    assert (await client.reader.read_turn(later)).state is TurnState.QUEUED


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"model": "gpt-9"}, "model"),
        ({"messages": ()}, "messages"),
        ({"messages": ({"role": "assistant", "content": "x"},)}, "messages"),
        ({"messages": ({"role": "user", "content": "  "},)}, "messages"),
        ({"validators": ("step_markr",)}, "validators"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"deadline_seconds": 0.0}, "deadline_seconds"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "s\udc80"}, "session_id"),
        ({"messages": ({"role": "user", "content": "half \ud83d"},)}, "messages"),
        ({"metadata": {"\udfff": "x"}}, "metadata"),
    ],
)
async def test_a_request_that_can_never_work_is_refused_before_anything_is_written(
    client: TurnsClient, store: redis.Redis, bad: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await client.submitter.submit(request(**bad))
    assert refused.value.param == param
    assert store.keys(f"{client.settings.namespace}:*") == []


async def test_reject_refuses_while_the_session_is_busy(client: TurnsClient, ledger: Ledger) -> None:
    first = await client.submitter.submit(request())
    with pytest.raises(SessionBusy, match=first):
        await client.submitter.submit(request(double_text=DoubleText.REJECT))
    ledger.commit_transition(claimed(ledger, first), PASSED)
    await client.submitter.submit(request(double_text=DoubleText.REJECT))


async def test_interrupt_cancels_what_the_session_was_doing(client: TurnsClient) -> None:
    first = await client.submitter.submit(request())
    second = await client.submitter.submit(request(double_text=DoubleText.INTERRUPT))
    assert (await client.reader.read_turn(first)).outcome is Outcome.CANCELLED
    assert (await client.reader.read_turn(second)).state is TurnState.QUEUED
