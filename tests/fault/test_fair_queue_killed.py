"""Owners take turns with real workers, also while these are killed: nothing is lost, and no slot of an owner leaks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.turn import Outcome
from tests.fault.matrix import InlineStage, Stage
from tests.installation import asked
from tests.support import json_lines, wait_until

pytestmark = pytest.mark.long

SLOTS = 4
SCRIPT = """
- attempts:
    - - wait: 0.5
      - say: "fertig.\\n\\n<!-- STEP: done -->"
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with InlineStage(tmp_path, SCRIPT, run_slots=SLOTS) as made:
        made.start(workers=2)
        yield made


def starts(stage: Stage) -> list[str]:
    return [line["turn"] for line in json_lines(stage.action_log) if line["event"] == "start"]


async def test_another_owners_turn_starts_next_behind_a_hundred(stage: Stage) -> None:
    async with TurnsClient(stage.settings) as client:
        await client.submitter.submit(asked("hello", "warm"))
        await wait_until(lambda: starts(stage))
        many = [
            await client.submitter.submit(replace(asked("hello", f"s-{number}"), owner="a")) for number in range(100)
        ]
        await wait_until(lambda: len(starts(stage)) >= 10)
        one = await client.submitter.submit(replace(asked("hello", "other"), owner="b"))
        begun = len(starts(stage))
        await wait_until(lambda: one in starts(stage))
        before = starts(stage).index(one) - begun
        turns = await asyncio.gather(*(client.reader.await_result(each, timeout=240) for each in (*many, one)))
    assert {turn.outcome for turn in turns} == {Outcome.PASSED}
    assert before <= 2 * SLOTS + 2, "those that were let go already, or are in a worker's hands"


async def test_an_owner_keeps_its_limit_and_all_its_places_while_workers_are_killed(stage: Stage) -> None:
    keys = Keys(stage.settings.namespace)
    async with TurnsClient(stage.settings) as client:
        ids = [
            await client.submitter.submit(replace(asked("hello", f"s-{n}"), owner="a", at_once=2)) for n in range(16)
        ]
        with stage.store as store:
            for number in (2, 6):
                await wait_until(lambda number=number: len(starts(stage)) >= number)
                assert store.zcard(keys.at_work) <= 2
                for worker in stage.workers:
                    os.kill(worker.children()["1"], signal.SIGKILL)
            turns = await asyncio.gather(*(client.reader.await_result(each, timeout=240) for each in ids))
            assert {turn.outcome for turn in turns} == {Outcome.PASSED}
            assert (store.zcard(keys.at_work), store.zcard(keys.waiting)) == (0, 0)
    open_now, most = 0, 0
    for line in json_lines(stage.action_log):
        open_now += {"start": 1, "end": -1}.get(line["event"], 0)
        most = max(most, open_now)
    killed = len([turn for turn in turns if turn.delivery > 1])
    assert most <= 2 + killed, "a killed run has no end"
