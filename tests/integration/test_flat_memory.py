"""The memory of engine and relay stays flat: what a turn needs is forgotten soon after its end."""

import asyncio
import gc
import os
import tracemalloc
from dataclasses import replace

import httpx2
import pytest

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from tests.installation import web
from tests.integration.engine import FIRST, GOOD, Bench, says
from worker.logs import configure_logging

#: Turns until all caches are full, and turns by which memory must not have grown (20,000 in ``make faults``).
_WARM, _MEASURED = 300, 20_000 if os.environ.get("WHOLE_MATRIX") else 400
#: Turns in flight, so that none waits for the store alone.
_AT_ONCE = 6
#: Bytes a turn that may stay: a cache of 4,096 turns kept 4,700.
_MOST = 400.0


async def _carry_out(bench: Bench, http: httpx2.AsyncClient, numbers: list[int]) -> None:
    """Ask each question over the relay, have the engine answer it, and read the turn and its events."""
    while numbers:
        question = {"role": "user", "content": "hello"}
        order = {"model": "scripted", "session_id": f"s{numbers.pop()}", "messages": [question]}
        made = (await http.post("/v1/turns", json=order)).json()
        await asyncio.to_thread(bench.carry_out_one, FIRST, made["turn_id"], made["session_id"])
        assert (await http.get(made["url"])).json()["outcome"] == "passed"
        assert "turn.finished" in (await http.get(made["events_url"])).text


@pytest.mark.timeout(3_600)
async def test_engine_and_relay_keep_nothing_of_turns_that_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = replace(bench.settings, log_level="error")  # what is logged is kept by pytest
    configure_logging(quiet)
    monkeypatch.setattr(bench.runner, "run", says(GOOD))
    for queue in (RUN_QUEUE, CHECK_QUEUE):
        bench.slots.set_limit(queue, _AT_ONCE)
    async with web(quiet) as http:

        async def carry_out(first: int, count: int) -> tracemalloc.Snapshot:
            numbers = list(range(first, first + count))
            await asyncio.gather(*(_carry_out(bench, http, numbers) for _ in range(_AT_ONCE)))
            del numbers
            gc.collect()
            return tracemalloc.take_snapshot()

        tracemalloc.start()
        before = await carry_out(0, _WARM)
        after = await carry_out(_WARM, _MEASURED)
        tracemalloc.stop()
    found = after.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)]).compare_to(before, "lineno")
    grown = sum(each.size_diff for each in found)
    told = "\n".join(f"{each.size_diff} bytes: {each.traceback}" for each in found[:14] if each.size_diff > 0)
    print(f"{grown / _MEASURED:.0f} bytes a turn stay, of {_MEASURED} turns")
    assert grown < _MOST * _MEASURED, told
