"""Waits of requests end when the relay stops, and only then."""

import asyncio

import pytest

from api_client.web.relay.relay import RelayStopping, StopSignal


async def test_a_second_signal_while_waits_are_ending_is_no_error() -> None:
    stop = StopSignal()
    wait = asyncio.create_task(stop.await_unless_stopped(asyncio.Event().wait()))
    for _ in range(2):
        await asyncio.sleep(0)  # the wait begins, then it is about to end
        stop.set()
    with pytest.raises(RelayStopping):
        await wait
    with pytest.raises(RelayStopping):
        await stop.await_unless_stopped(asyncio.Event().wait())


async def test_what_is_there_at_once_is_still_given_after_the_stop() -> None:
    stop = StopSignal()
    stop.set()

    async def give() -> int:
        return 7

    assert await stop.await_unless_stopped(give()) == 7


async def test_a_timeout_of_the_step_itself_is_no_stop_of_the_relay() -> None:
    async def fail() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await StopSignal().await_unless_stopped(fail())
