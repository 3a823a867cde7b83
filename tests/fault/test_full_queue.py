"""While many turns wait, turns that have waited before start first, and workers without a free slot take nothing.

And a worker leaves to others what it has no slot for.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.tasks import RUN_QUEUE
from api_client.contract.turn import Outcome
from tests.fault.matrix import InlineStage, Stage
from tests.installation import asked
from tests.support import json_lines, wait_until

TURNS, SLOTS = 120, 4
#: So many turns that never ran may start between the loss of a run and its next start: of 100 and more that wait.
MOST_BEFORE = 20
SCRIPT = """
- when: "held"
  attempts:
    - - wait_for: {meet}/go
      - say: "fertig.\\n\\n<!-- STEP: done -->"
- attempts:
    - - wait: 1.0
      - say: "fertig.\\n\\n<!-- STEP: done -->"
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with InlineStage(tmp_path, SCRIPT, run_slots=SLOTS) as made:
        made.start(workers=2)
        yield made


def logged_events(stage: Stage, event: str) -> list[dict[str, Any]]:
    """Return the logged starts or ends of agent runs, in order."""
    return [line for line in json_lines(stage.action_log) if line["event"] == event]


def running(stage: Stage, pid: int) -> int:
    """Return how many agents a worker process runs now, inside the process."""
    counts = [sum(line["pid"] == pid for line in logged_events(stage, event)) for event in ("start", "end")]
    return counts[0] - counts[1]


async def test_lost_runs_start_again_before_a_queue_of_others(stage: Stage) -> None:
    async with TurnsClient(stage.settings) as client:
        ids = [await client.submitter.submit(asked("hello", f"s-{number}")) for number in range(TURNS)]
        victim = stage.workers[0].children()["1"]
        await wait_until(lambda: running(stage, victim) >= SLOTS)
        os.kill(victim, signal.SIGKILL)
        turns = await asyncio.gather(*(client.reader.await_result(turn_id, timeout=240) for turn_id in ids))
        lost = {turn.turn_id: await client.reader.read_events(turn.turn_id) for turn in turns if turn.delivery > 1}
    assert {turn.outcome for turn in turns} == {Outcome.PASSED}
    assert lost, "the killed worker held turns"
    runs = logged_events(stage, "start")
    for turn_id, events in lost.items():
        [taken] = [event.at for event in events if event.kind == "attempt.lost"]
        [again] = [run["at"] for run in runs if run["turn"] == turn_id and run["delivery"] == 2]
        before = [run for run in runs if run["delivery"] == 1 and taken < run["at"] < again]
        assert len(before) <= MOST_BEFORE, f"{len(before)} turns that never ran were started before {turn_id}"


async def test_the_next_turn_of_a_running_session_starts_before_a_queue_of_others(stage: Stage) -> None:
    async with TurnsClient(stage.settings) as client:
        first = await client.submitter.submit(asked("held", "s-running"))
        await wait_until(lambda: logged_events(stage, "start"))
        others = [await client.submitter.submit(asked("hello", f"s-{number}")) for number in range(TURNS)]
        following = await client.submitter.submit(asked("hello", "s-running"))
        (stage.meet / "go").touch()
        turns = await asyncio.gather(
            *(client.reader.await_result(each, timeout=240) for each in (first, *others, following))
        )
    assert {turn.outcome for turn in turns} == {Outcome.PASSED}
    [ended] = [run["at"] for run in logged_events(stage, "end") if run["turn"] == first]
    starts = {run["turn"]: run["at"] for run in logged_events(stage, "start")}
    before = [turn_id for turn_id in others if ended < starts[turn_id] < starts[following]]
    assert len(before) <= MOST_BEFORE, f"{len(before)} turns that never ran were started before it"


async def test_a_worker_that_finds_a_full_queue_takes_no_more_messages_than_it_has_slots(tmp_path: Path) -> None:
    with InlineStage(tmp_path, SCRIPT, run_slots=2) as stage:
        stage.start(workers=0)
        async with TurnsClient(stage.settings) as client:
            ids = [await client.submitter.submit(asked("held", f"s-{number}")) for number in range(6)]
            stage.start(workers=1)
            await wait_until(lambda: len(logged_events(stage, "start")) == 2)
            with stage.store as store:
                assert store.llen(f"{stage.settings.namespace}:celery:{RUN_QUEUE}") == 2
                assert store.zcard(Keys(stage.settings.namespace).waiting) == 2
            (stage.meet / "go").touch()
            turns = await asyncio.gather(*(client.reader.await_result(each) for each in ids))
    assert {turn.outcome for turn in turns} == {Outcome.PASSED}
