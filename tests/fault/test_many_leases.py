"""Many leases over a slow connection are renewed in one command, so that no healthy run is taken for a lost one."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from api_client.contract.worker_reports import WorkerReport
from tests.chaos.proxy import tell
from tests.fault.matrix import InlineStage, Stage
from tests.installation import asked
from tests.support import json_lines, wait_for, wait_until
from worker.cli.checks.workers import check_leases

TURNS = 100
#: Each way between worker and store, in seconds: the beats of 100 turns one after the other take longer than a lease.
DELAY, LEASE_SECONDS = 0.1, 12.0
#: Each way too: a round of leases then takes longer than the sixth of a lease that is slow, and less than costs one.
SLOW_DELAY = 1.2
SCRIPT = """
- attempts:
    - - say: "Ich arbeite ... "
      - wait_for: {meet}/go
      - say: "fertig.\\n\\n<!-- STEP: done -->"
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    link, control = f"unix://{tmp_path}/link", str(tmp_path / "control")
    made = InlineStage(
        tmp_path,
        SCRIPT,
        store_url=link,
        lease_seconds=LEASE_SECONDS,
        run_slots=TURNS,
    )
    links = {"store": [f"unix:{tmp_path}/link", f"unix:{made.broker.socket}"]}
    proxy = subprocess.Popen([sys.executable, "-P", "-m", "tests.chaos.proxy", control, json.dumps(links)])
    try:
        wait_for(lambda: Path(control).exists())
        made.start(workers=1)
        yield made
    finally:
        made.stop()
        proxy.kill()
        proxy.wait()


def starts(stage: Stage) -> int:
    """Return how many agent runs were really started."""
    return sum(line["event"] == "start" for line in json_lines(stage.action_log))


def slow_leases(stage: Stage) -> bool:
    """Return True if `turns doctor` warns about slow lease renewals."""
    with stage.store as store:
        found: dict[bytes, bytes] = store.hgetall(stage.keys.workers)  # type: ignore[assignment]
    reports = [WorkerReport.from_json(name.decode(), text) for name, text in found.items()]
    return [each.state for each in check_leases(reports, now=reports[0].at, lease_seconds=LEASE_SECONDS)] == ["warning"]


async def test_a_hundred_turns_over_a_slow_link_start_a_hundred_agents(stage: Stage, tmp_path: Path) -> None:
    async with TurnsClient(stage.settings) as client:
        ids = [await client.submitter.submit(asked("hello", f"s-{number}")) for number in range(TURNS)]
        await tell(str(tmp_path / "control"), "store", "delay", DELAY)
        await wait_until(lambda: starts(stage) >= TURNS, 180)
        held_until = time.monotonic() + 1.5 * LEASE_SECONDS
        await wait_until(lambda: time.monotonic() > held_until)
        (stage.meet / "go").touch()
        turns = await asyncio.gather(*(client.reader.await_result(turn_id, timeout=240) for turn_id in ids))
    assert {turn.outcome for turn in turns} == {Outcome.PASSED}
    assert (starts(stage), sum(turn.delivery for turn in turns)) == (TURNS, TURNS)


async def test_a_link_that_gets_slow_is_reported_before_it_costs_a_lease(stage: Stage, tmp_path: Path) -> None:
    worker = stage.workers[0]
    async with TurnsClient(stage.settings) as client:
        turn_id = await client.submitter.submit(asked("hello", "s-slow"))
        await wait_until(lambda: starts(stage) == 1)
        await tell(str(tmp_path / "control"), "store", "delay", SLOW_DELAY)
        await wait_until(lambda: '"event": "lease.round_slow"' in worker.log_file.read_text(), 120)
        held_until = time.monotonic() + 1.5 * LEASE_SECONDS
        await wait_until(lambda: time.monotonic() > held_until)
        await tell(str(tmp_path / "control"), "store", "heal")
        # A report may not get through a slow link; for a minute it has the longest round of the last minute.
        await wait_until(lambda: slow_leases(stage))
        (stage.meet / "go").touch()
        turn = await client.reader.await_result(turn_id, timeout=240)
    assert (turn.outcome, turn.delivery, starts(stage)) == (Outcome.PASSED, 1, 1), "slow is not lost"
