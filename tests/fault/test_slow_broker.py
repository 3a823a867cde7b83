"""A broker that takes two seconds per command: callers are told, agents may be stopped, nothing is lost or blamed."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.chaos.proxy import tell
from tests.fault.conftest import judged
from tests.fault.matrix import Stage
from tests.fault.test_broker_trouble import SCRIPT, begun, busy_seconds, submit
from tests.support import wait_for, wait_until

#: Each way, in seconds; how long it lasts: longer than a default lease; how much of the time a worker may be busy.
DELAY, LASTS, MOST_BUSY = 1.0, 8.0, 0.35


@pytest.fixture
def control(tmp_path: Path) -> str:
    return str(tmp_path / "control")


@pytest.fixture
def stage(tmp_path: Path, control: str) -> Iterator[Stage]:
    link, default = f"unix://{tmp_path}/link", Settings()
    made = Stage(tmp_path, SCRIPT, store_url=link, broker_url=link, lease_seconds=default.lease_seconds)
    links = {"all": [f"unix:{tmp_path}/link", f"unix:{made.broker.socket}"]}
    proxy = subprocess.Popen([sys.executable, "-P", "-m", "tests.chaos.proxy", control, json.dumps(links)])
    try:
        wait_for(lambda: Path(control).exists())
        made.start(workers=1, relay=True)
        yield made
    finally:
        made.stop()
        proxy.kill()
        proxy.wait()


async def test_a_broker_that_takes_two_seconds_for_a_command_delays_but_nothing_is_lost_or_blamed(
    stage: Stage, control: str
) -> None:
    workers = stage.workers[0].children()
    async with TurnsClient(stage.settings) as client, httpx2.AsyncClient(base_url=stage.url, timeout=60) as http:
        held = await begun(http, client, "[held slow]")
        busy = {role: busy_seconds(pid) for role, pid in workers.items()}
        await tell(control, "all", "delay", DELAY)
        slow_at, answers = time.monotonic(), []
        while time.monotonic() < slow_at + LASTS:
            answers.append(await submit(http, "hello"))
            assert (await http.get("/healthz")).status_code == 200
        passed = time.monotonic() - slow_at
        used = {role: busy_seconds(pid) - busy[role] for role, pid in workers.items()}
        await tell(control, "all", "heal")
        assert {answer.status_code for answer in answers} <= {200, 201, 202, 503}
        assert all(int(a.headers["retry-after"]) > 0 for a in answers if a.status_code == 503)
        assert all(seconds < MOST_BUSY * passed for seconds in used.values()), f"they spin: {used} in {passed:.1f} s"
        (stage.meet / "go").touch()
        told = [answer.json()["turn_id"] for answer in answers if answer.is_success]
        for turn_id in (held, *told):
            turn, _ = await judged(client, turn_id)
            assert (turn.outcome, turn.attempt, turn.strikes) == (Outcome.PASSED, 1, 0), (
                "a slow broker is no turn's fault"
            )
        await wait_until(lambda: stage.workers[0].children() == workers)
