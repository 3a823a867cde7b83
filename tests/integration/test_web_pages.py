"""Pages of Open WebUI over the real store: what joins a turn, what makes a new one, and what Stop does.

No worker runs: the tests finish turns by cancelling them, or leave them waiting.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.settings import Settings
from api_client.contract.turn import TurnState
from tests.integration.served import HI, PAGE, REGENERATE, Served, serving
from tests.support import stays, wait_until


@pytest.fixture
async def relay(settings: Settings) -> AsyncIterator[Served]:
    """A relay that never cancels a turn because its reader left."""
    async with serving(replace(settings, stop_grace_seconds=0.0)) as served:
        yield served


async def test_regenerate_after_a_lost_stream_joins_the_turn(relay: Served) -> None:
    first = await relay.turn_of(PAGE)
    assert await relay.turn_of(REGENERATE) == first


async def test_regenerate_joins_a_turn_of_a_relay_that_is_gone(settings: Settings) -> None:
    async with serving(settings) as one, one.page(PAGE) as turn_id:
        pass
    async with serving(settings) as other:
        assert await other.turn_of(REGENERATE) == turn_id


async def test_a_lost_stream_is_told_and_is_no_delivered_answer(settings: Settings) -> None:
    async with serving(settings) as one:
        body = {"model": "scripted", "messages": HI, "stream": True}
        reading = asyncio.create_task(one.http.post("/v1/chat/completions", json=body, headers=PAGE))
        turn_id = await _only_turn(one)
        one.stopping.set()
        assert '"code":"stream_lost"' in (await reading).text
    async with serving(settings) as other:
        assert await other.turn_of(REGENERATE) == turn_id


async def test_regenerate_after_an_ending_that_was_told_runs_again(relay: Served) -> None:
    body = {"model": "scripted", "messages": HI, "stream": True}
    reading = asyncio.create_task(relay.http.post("/v1/chat/completions", json=body, headers=PAGE))
    turn_id = await _only_turn(relay)
    await relay.client.canceller.cancel(turn_id)
    assert "abgebrochen" in (await reading).text
    assert await relay.turn_of(REGENERATE) != turn_id


async def test_regenerate_of_a_turn_that_was_called_off_runs_again(relay: Served) -> None:
    first = await relay.turn_of(PAGE)
    await relay.client.canceller.cancel(first)
    second = await relay.turn_of(REGENERATE)
    assert second != first
    assert await relay.turn_of({**PAGE, "x-owui-message-id": "m3"}) == second


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({**REGENERATE, "x-owui-user-message-id": "u2"}, {}),  # an edited message, sent again as it was
        ({**REGENERATE, "x-owui-chat-id": "c2"}, {}),
        ({**REGENERATE, "x-owui-chat-id": "temporary:abc"}, {}),
        (PAGE, {"messages": [*HI, {"role": "assistant", "content": "Guten"}]}),  # Continue
        (REGENERATE, {"messages": [{"role": "user", "content": "Anders"}]}),
        (REGENERATE, {"locale": "en"}),
    ],
)
async def test_another_question_is_another_turn(relay: Served, headers: dict[str, str], body: dict[str, Any]) -> None:
    assert await relay.turn_of(PAGE) != await relay.turn_of(headers, **body)


async def test_temporary_chats_can_regenerate_too(relay: Served) -> None:
    temporary = {"x-owui-chat-id": "temporary:abc"}
    assert await relay.turn_of({**PAGE, **temporary}) == await relay.turn_of({**REGENERATE, **temporary})


async def test_one_model_chosen_twice_answers_twice(relay: Served) -> None:
    async with relay.page(PAGE) as first, relay.page(REGENERATE) as second:
        assert first != second


async def test_continue_asks_the_agent_to_go_on(relay: Served) -> None:
    turn_id = await relay.turn_of(PAGE, messages=[*HI, {"role": "assistant", "content": "Guten"}])
    request = (await relay.client.reader.read_turn(turn_id)).request
    assert request.messages[-2:] == (
        {"role": "assistant", "content": "Guten"},
        {"role": "user", "content": "Setze deine letzte Antwort genau dort fort, wo sie endet. Wiederhole nichts."},
    )


async def test_a_client_that_sends_again_after_its_time_out_joins_its_turn(relay: Served) -> None:
    first = await relay.turn_of({"x-stainless-retry-count": "0"})
    assert await relay.turn_of({"x-stainless-retry-count": "1"}) == first
    assert await relay.turn_of({"x-stainless-retry-count": "2"}) == first
    second = await relay.turn_of({"x-stainless-retry-count": "0"})
    assert second != first, "the same words are a new question when they are sent for the first time"
    other = [{"role": "user", "content": "Anders"}]
    assert await relay.turn_of({"x-stainless-retry-count": "1"}, messages=other) not in {first, second}


async def test_a_repeat_joins_also_while_its_first_sender_is_still_there(relay: Served) -> None:
    first, again = ({"x-stainless-retry-count": count} for count in "01")
    async with relay.page(first) as turn_id, relay.page(again) as same:
        assert same == turn_id


async def test_another_owner_joins_nothing(settings: Settings) -> None:
    async with serving(replace(settings, api_keys=("one", "two"))) as relay:
        mine = await relay.turn_of({**PAGE, "authorization": "Bearer one"})
        assert await relay.turn_of({**REGENERATE, "authorization": "Bearer two"}) != mine


async def test_stop_cancels_when_nobody_comes_back(settings: Settings) -> None:
    async with serving(replace(settings, stop_grace_seconds=0.3)) as relay:
        turn_id = await relay.turn_of(PAGE)

        async def finished() -> bool:
            return await relay.state(turn_id) is TurnState.FINISHED

        await wait_until(finished)
        assert str((await relay.client.reader.read_turn(turn_id)).outcome) == "cancelled"


@pytest.mark.parametrize(
    ("path", "body"),
    [("chat/completions", {"messages": HI}), ("responses", {"input": "Hallo"})],
    ids=["chat", "responses"],
)
async def test_stop_cancels_an_answer_that_does_not_stream_too(
    settings: Settings, path: str, body: dict[str, Any]
) -> None:
    async with serving(replace(settings, stop_grace_seconds=0.3)) as relay:
        asking = asyncio.create_task(relay.http.post(f"/v1/{path}", json={"model": "scripted", **body}, headers=PAGE))
        turn_id = await _only_turn(relay)
        asking.cancel()

        async def finished() -> bool:
            return await relay.state(turn_id) is TurnState.FINISHED

        await wait_until(finished)
        assert str((await relay.client.reader.read_turn(turn_id)).outcome) == "cancelled"


async def test_a_reader_that_comes_back_calls_the_stop_off(settings: Settings) -> None:
    async with serving(replace(settings, stop_grace_seconds=4.0)) as relay:
        turn_id = await relay.turn_of(PAGE)
        async with relay.page(REGENERATE) as same:
            assert same == turn_id
            await stays(lambda: relay.waits(turn_id), 5.0)


async def test_a_new_message_after_stop_does_not_wait_for_the_stopped_turn(settings: Settings) -> None:
    async with serving(replace(settings, stop_grace_seconds=60.0)) as relay:
        stopped = await relay.turn_of(PAGE)
        other_chat = await relay.turn_of({**PAGE, "x-owui-chat-id": "c2"})
        ask_else = [{"role": "user", "content": "Anders"}]
        second = await relay.turn_of({**PAGE, "x-owui-user-message-id": "u2"}, messages=ask_else)
        assert await relay.state(stopped) is TurnState.FINISHED
        assert await relay.state(other_chat) is TurnState.QUEUED
        assert await relay.state(second) is TurnState.QUEUED


async def test_a_reader_elsewhere_keeps_the_turn_alive(settings: Settings) -> None:
    async with serving(replace(settings, stop_grace_seconds=4.0)) as one, serving(settings) as other:
        async with one.page(PAGE) as turn_id:
            pass
        reading = asyncio.create_task(other.http.get(f"/v1/turns/{turn_id}/events"))
        await stays(lambda: one.waits(turn_id), 5.0)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def test_a_program_that_leaves_cancels_nothing(settings: Settings) -> None:
    async with serving(replace(settings, stop_grace_seconds=0.1)) as relay:
        turn_id = await relay.turn_of({"x-conversation-id": "c"})
        await stays(lambda: relay.waits(turn_id), 0.5)


async def test_delete_cancels_at_once(relay: Served) -> None:
    turn_id = await relay.turn_of(PAGE)
    answer = await relay.http.delete(f"/v1/turns/{turn_id}")
    assert json.loads(answer.text)["outcome"] == "cancelled"


async def _only_turn(relay: Served) -> str:
    async def due() -> Any:
        return await relay.client.store.redis.zrange(relay.client.store.keys.due, 0, -1)

    [turn_id] = await wait_until(due)
    return str(turn_id.decode())
