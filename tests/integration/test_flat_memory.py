"""The memory of engine and relay stays flat: what a turn needs is forgotten soon after its end."""

import gc
import os
import tracemalloc
from dataclasses import replace

import pytest

from tests.installation import web
from tests.integration.engine import GOOD, Bench, says
from worker.logs import configure_logging

#: Turns until all caches are full, and turns by which memory must not have grown (20,000 in ``make faults``).
_WARM, _MEASURED = 300, 20_000 if os.environ.get("WHOLE_MATRIX") else 400
#: Bytes a turn that may stay: a cache of 4,096 turns kept 4,700.
_MOST = 400.0


@pytest.mark.timeout(3_600)
async def test_engine_and_relay_keep_nothing_of_turns_that_ended(bench: Bench) -> None:
    quiet = replace(bench.settings, log_level="error")  # what is logged is kept by pytest
    configure_logging(quiet)
    async with web(quiet) as http:

        async def carry_out(number: int) -> None:
            bench.runner.plays[:] = [says(GOOD)]
            order = {
                "model": "scripted",
                "session_id": f"s{number}",
                "messages": [{"role": "user", "content": "hello"}],
            }
            made = (await http.post("/v1/turns", json=order)).json()
            turn_id = made["turn_id"]
            bench.carry_out(turn_id, session_id=made["session_id"])
            bench.runner.orders.clear()
            assert (await http.get(f"/v1/turns/{turn_id}")).json()["outcome"] == "passed"
            assert "turn.finished" in (await http.get(f"/v1/turns/{turn_id}/events")).text

        tracemalloc.start(3)
        for number in range(_WARM):
            await carry_out(number)
        gc.collect()
        before = tracemalloc.take_snapshot()
        for number in range(_WARM, _WARM + _MEASURED):
            await carry_out(number)
        gc.collect()
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
    found = after.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)]).compare_to(before, "traceback")
    grown = [each for each in found if each.size_diff > 0]
    told = "\n".join(f"{each.size_diff} bytes: {each.traceback.format()[-2:]}" for each in grown[:14])
    assert sum(each.size_diff for each in found) < _MOST * _MEASURED, told
