"""Who is read and parsed when many large bodies come at once: each owner has a share, and refused ones keep nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.requests import Request

from api_client.web.bodies import body
from api_client.web.bodies.body import OWNER_SCOPE_KEY, read_object, run_off_loop
from api_client.web.errors import ApiError
from tests.support import wait_until

MB = 2**20
MOST = 8 * MB


class Sender:
    """Sends a body piece by piece, as its test says."""

    def __init__(self, owner: str, size: int) -> None:
        self.scope = {"type": "http", "headers": [(b"content-type", b"application/json")], OWNER_SCOPE_KEY: owner}
        self._text = json.dumps({"x": ""}).encode().ljust(size)
        self._pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent = 0
        self.read = asyncio.create_task(read_object(Request(self.scope, self._pieces.get), MOST))

    def send(self, size: int) -> Sender:
        piece, self._sent = self._text[self._sent : self._sent + size], self._sent + size
        more = self._sent < len(self._text)
        self._pieces.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        return self

    async def outcome(self) -> int:
        """200 once it is read and parsed, else the status of the refusal."""
        try:
            await self.read
        except ApiError as error:
            return error.status
        return 200


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    assert body._reading.total_bytes == 0
    yield
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await wait_until(lambda: not body._reading.total_bytes)
    assert not body._reading.bytes_by_owner
    assert not body._reading.unread


async def settled() -> None:
    """Every sender's pieces have been read."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_of_five_bodies_of_seven_megabytes_of_one_owner_four_are_read() -> None:
    senders = [Sender("one", 7 * MB) for _ in range(5)]
    for _ in range(14):  # piece by piece, all at the same time
        for each in senders:
            each.send(MB // 2)
        await settled()
    assert sorted([await each.outcome() for each in senders]) == [200, 200, 200, 200, 429]


async def test_of_fifty_bodies_of_the_largest_size_as_many_are_read_as_have_room() -> None:
    senders = [Sender(owner, MOST) for owner in ("one", "other") for _ in range(25)]
    for _ in range(8):
        for each in senders:
            each.send(MB)
        await settled()
    read = [await each.outcome() == 200 for each in senders]
    assert sum(read[:25]) >= 3
    assert sum(read[25:]) >= 3


@pytest.mark.parametrize("keys", [2, 12])
async def test_unfinished_bodies_of_some_keys_shut_no_other_owner_out(keys: int) -> None:
    held = [Sender(f"key {number}", MOST).send(MOST - 1) for number in range(keys) for _ in range(4)]
    await settled()
    assert body._reading.total_bytes > body.MAX_READING_BYTES - MOST
    for size in (20_000, MB, 4 * MB):
        assert await Sender("other", size).send(size).outcome() == 200
    for each in held:  # those that made room hear it; the others are read
        each.send(1)
    outcomes = [await each.outcome() for each in held]
    assert set(outcomes) == {200, 429}


async def test_an_owner_makes_no_room_at_the_cost_of_who_has_less() -> None:
    small = [Sender(f"key {number}", 4 * MB).send(4 * MB - 1) for number in range(14)]
    await settled()
    big = [Sender("big", MOST).send(MOST - 1) for _ in range(3)]
    await settled()
    assert body._reading.bytes_by_owner["big"] <= MOST
    for each in [*small, *big]:
        each.send(MB)
    assert {await each.outcome() for each in small} == {200}


async def test_a_refused_body_keeps_nothing_while_its_sender_goes_on() -> None:
    first = [Sender("one", MOST).send(MOST - 1) for _ in range(4)]
    await settled()
    refused = Sender("one", MOST).send(MB)
    await settled()
    assert body._reading.bytes_by_owner["one"] == 4 * (MOST - 1)
    too_long = Sender("other", MOST + MB).send(MOST)
    await settled()
    too_long.send(MB // 2)
    await settled()
    assert "other" not in body._reading.bytes_by_owner
    assert not refused.read.done()
    for each in (*first, refused, too_long):
        each.send(MOST)
    assert [await each.outcome() for each in (*first, refused, too_long)] == [200, 200, 200, 200, 429, 413]


async def test_the_work_of_each_owner_is_done_in_turn_however_much_another_one_brought() -> None:
    """Its wait does not grow with the other's backlog."""
    begun, go, done = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        go.wait(60)

    waiting: list[asyncio.Task[None]] = [asyncio.create_task(run_off_loop(first, "one"))]
    assert await asyncio.to_thread(begun.wait, 60)

    def noting(name: str) -> Callable[[], None]:
        return lambda: done.append(name)

    named = [(f"one {number}", "one") for number in range(98)] + [("other", "other"), ("third", "third")]
    for name, owner in named:
        waiting.append(asyncio.create_task(run_off_loop(noting(name), owner)))
        await settled()
    waiting[50].cancel()  # its sender left
    await settled()
    go.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert done[:4] == ["one 0", "other", "third", "one 1"]
    assert done[4:] == [f"one {at}" for at in range(2, 98) if at != 49]


async def test_work_that_fails_says_so_to_its_caller_and_to_no_other() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_off_loop(fails, "one")
    assert await run_off_loop(lambda: 1, "one") == 1
