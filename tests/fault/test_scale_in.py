"""Workers are removed and added under load, as an orchestrator does: SIGTERM, a grace period, SIGKILL.

``SCALE_IN_WORKERS=20`` sets their number; one tenth of them stays.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome, Turn
from api_client.contract.worker_reports import worker_name
from tests.fault.matrix import Stage
from tests.installation import WorkerProcess, asked
from tests.support import json_lines, processes_with, wait_until

pytestmark = pytest.mark.long

WORKERS = int(os.environ.get("SCALE_IN_WORKERS", "6"))
STAY = max(1, WORKERS // 10)
TURNS = 10 * WORKERS
#: The answer comes at once, and the agent ends later: a run is paid for when it ends by itself.
SCRIPT = """
- attempts:
    - - say: "fertig.\\n\\n<!-- STEP: done -->"
      - wait: {seconds}
"""


def stage_of(folder: Path, run_seconds: float, shutdown_seconds: float) -> Stage:
    script = SCRIPT.replace("{seconds}", str(run_seconds))
    return Stage(folder, script, run_slots=2, shutdown_seconds=shutdown_seconds, lease_seconds=5.0)


class Runs:
    """The agent runs that really happened: every start, and every end that was not forced."""

    def __init__(self, stage: Stage) -> None:
        self.starts, self.paid = Counter[str](), Counter[str]()
        self.again: list[str] = []
        for line in json_lines(stage.action_log):
            if line["event"] == "start":
                self.starts[line["turn"]] += 1
                self.again += [line["turn"]] * bool(self.paid[line["turn"]])
            elif line["exit"] == 0:
                self.paid[line["turn"]] += 1


async def scaled_in(stage: Stage, leave: list[WorkerProcess], grace_seconds: float) -> None:
    """Send SIGTERM to all workers at once, and kill those that still run after the grace period."""
    kill_at = time.monotonic() + grace_seconds
    for worker in leave:
        worker.kill(signal.SIGTERM)
    while time.monotonic() < kill_at and any(worker.process.poll() is None for worker in leave):
        await asyncio.sleep(0.05)
    for worker in leave:
        if worker.process.poll() is None:
            for pid in (worker.pid, *worker.children().values()):
                os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(worker.process.wait, 60)


async def in_and_out(stage: Stage, grace_seconds: float) -> list[Turn]:
    """Remove and add workers twice while turns run; return the finished turns."""
    stage.start(workers=WORKERS)
    async with TurnsClient(stage.settings) as client:
        ids = [await client.submitter.submit(asked("hello", f"s-{number}")) for number in range(TURNS)]
        for part in (0.1, 0.5):
            await wait_until(lambda part=part: len(Runs(stage).starts) >= part * TURNS)
            leave = [worker for worker in stage.workers if worker.process.poll() is None][STAY:]
            await scaled_in(stage, leave, grace_seconds)
            for _ in leave:
                stage.worker(wait=False)
        return list(await asyncio.gather(*(client.reader.await_result(each, timeout=400) for each in ids)))


def judge(stage: Stage, turns: list[Turn]) -> Runs:
    runs = Runs(stage)
    assert Counter(turn.outcome for turn in turns) == {Outcome.PASSED: TURNS}
    assert (runs.again, max(runs.paid.values())) == ([], 1), "no run that ended is paid for twice"
    assert {turn.attempt for turn in turns} == {1}
    return runs


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.stop()
        assert not processes_with(f"HELIX_NAMESPACE={stage.settings.namespace}")


async def test_workers_that_may_finish_their_runs_start_none_twice(tmp_path: Path, stages: list[Stage]) -> None:
    stage = stage_of(tmp_path, run_seconds=1.0, shutdown_seconds=30.0)
    stages.append(stage)
    turns = await in_and_out(stage, grace_seconds=45.0)
    runs = judge(stage, turns)
    assert set(runs.starts.values()) == {1}, "the grace was longer than any run"
    assert {turn.strikes for turn in turns} == {0}


async def test_workers_that_are_killed_before_their_grace_is_over_lose_no_run_that_ended(
    tmp_path: Path, stages: list[Stage]
) -> None:
    stage = stage_of(tmp_path, run_seconds=2.0, shutdown_seconds=30.0)
    stages.append(stage)
    judge(stage, await in_and_out(stage, grace_seconds=0.7))


async def test_a_worker_that_ends_finishes_its_run_and_leaves_the_next_attempt_to_another_at_once(
    tmp_path: Path, stages: list[Stage]
) -> None:
    script = """
- attempts:
    - - touch: {meet}/begun
      - wait_for: {meet}/go
      - say: "Ohne Marker."
    - - say: "fertig.\\n\\n<!-- STEP: done -->"
"""
    stage = Stage(tmp_path, script, run_slots=2, shutdown_seconds=600.0)
    stages.append(stage)
    stage.start(workers=1)
    [first] = stage.workers
    async with TurnsClient(stage.settings) as client:
        turn_id = await client.submitter.submit(asked("hello", "s"))
        await wait_until((stage.meet / "begun").exists)
        first.kill(signal.SIGTERM)
        second = stage.worker()
        (stage.meet / "go").touch()
        turn = await client.reader.await_result(turn_id, timeout=120)
        attempts = await client.reader.read_attempts(turn_id)
    assert (turn.outcome, turn.strikes, turn.delivery) == (Outcome.PASSED_AFTER_RETRY, 0, 2)
    assert [worker_name(each.worker).rpartition("-")[0] for each in attempts] == [
        f"worker-{each.pid}" for each in (first, second)
    ]
    assert set(Runs(stage).starts.values()) == {2}, "one for each attempt"
