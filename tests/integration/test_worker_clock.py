"""A host whose clock is wrong: its worker is shown, and counted on, as any other."""

import time as clocks
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.workers.installation_state import InstallationState
from tests.support import wait_until
from worker.agents.model_availability import ModelAvailability
from worker.turns.leases import machine_health, worker_heartbeat
from worker.turns.leases.machine_health import Host
from worker.turns.leases.worker_heartbeat import WorkerActivity, WorkerHeartbeat
from worker.turns.loops.polling_loop import PollingLoop


class Clock:
    """The module ``time`` of a host whose clock is so many seconds ahead."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def time(self) -> float:
        return clocks.time() + self.ahead

    monotonic = staticmethod(clocks.monotonic)


def work() -> WorkerActivity:
    return WorkerActivity(
        name="worker-1@here",
        queues=lambda: (RUN_QUEUE, CHECK_QUEUE),
        taken=lambda: 0,
        slots=lambda queue: 2,
        free=lambda queue: 2,
        lease_round=lambda: 0.0,
        took_at=lambda: 0.0,
        obey=lambda order: False,
        loop_blocked=lambda: 0.0,
    )


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
async def test_a_worker_whose_clock_is_wrong_is_not_taken_for_gone(
    settings: Settings, ahead: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_health, "time", Clock(ahead))
    monkeypatch.setattr(worker_heartbeat, "time", Clock(ahead))
    heartbeat = PollingLoop(
        [WorkerHeartbeat(settings, work(), Host(tmp_path), ModelAvailability(), lambda queue: None, None)]
    )
    heartbeat.start()
    try:
        async with TurnsClient(settings) as client:

            async def first() -> InstallationState | None:
                standing = await client.workers.read_state()
                return standing if standing.workers else None

            standing = await wait_until(first)
            [line] = standing.workers
            assert (line.state, standing.fleet.agents) == ("idle", 1)
            assert abs(standing.at - line.heard_at) < 600
            assert abs(standing.at - line.started_at) < 600
    finally:
        heartbeat.close()
