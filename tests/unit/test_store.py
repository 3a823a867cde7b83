"""The store's client on an event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from api_client.store import heed_cancellation


async def test_a_loop_whose_cancellation_was_swallowed_ends_all_the_same() -> None:
    swallowing = asyncio.Event()

    async def looking() -> None:
        for _ in range(9):
            with suppress(asyncio.CancelledError):  # as the store's client can on Python 3.11
                swallowing.set()
                await asyncio.sleep(0)
            heed_cancellation()

    task = asyncio.create_task(looking())
    await swallowing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
