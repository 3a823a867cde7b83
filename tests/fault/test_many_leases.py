"""Many leases over a slow link: they are renewed in one command, so that no healthy run is taken for a lost one."""

from __future__ import annotations

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
from tests.chaos.proxy import tell
from tests.fault.conftest import message
from tests.fault.matrix import Stage
from tests.support import wait_for, wait_until

TURNS = 100
#: Each way between worker and store, in seconds: the beats of 100 turns one after the other take longer than a lease.
DELAY, LEASE_SECONDS = 0.1, 12.0
SCRIPT = """
- attempts:
    - - say: "Ich arbeite ... "
      - wait_for: {meet}/go
      - say: "fertig.\\n\\n<!-- STEP: done -->"
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    link, control = f"unix://{tmp_path}/link", str(tmp_path / "control")
    made = Stage(
        tmp_path,
        SCRIPT,
        store_url=link,
        models={"scripted": f"inline:{tmp_path}/meet/script.yaml"},
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
    """Agent runs that were really started."""
    if not stage.witness.exists():
        return 0
    return sum(json.loads(line)["event"] == "start" for line in stage.witness.read_text().splitlines())


async def test_a_hundred_turns_over_a_slow_link_start_a_hundred_agents(stage: Stage, tmp_path: Path) -> None:
    async with TurnsClient(stage.settings) as client:
        ids = [await client.submit(message("hello", f"s-{number}")) for number in range(TURNS)]
        await tell(str(tmp_path / "control"), "store", "delay", DELAY)
        await wait_until(lambda: starts(stage) >= TURNS, 180)
        held_until = time.monotonic() + 1.5 * LEASE_SECONDS
        await wait_until(lambda: time.monotonic() > held_until)
        (stage.meet / "go").touch()
        turns = await asyncio.gather(*(client.result(turn_id, timeout=240) for turn_id in ids))
    assert {turn.outcome for turn in turns} == {Outcome.PASSED}
    assert (starts(stage), sum(turn.delivery for turn in turns)) == (TURNS, TURNS)
