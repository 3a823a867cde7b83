"""Back-up and restore as docs/operations.md describes it: a copy of the append-only file of a running broker."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.conftest import WorkerProcess, end_all
from worker.processes.broker import EmbeddedBroker


async def test_a_copy_of_the_append_only_file_brings_every_turn_back_and_the_waiting_one_is_carried_out(
    private_settings: Settings,
    private_broker: EmbeddedBroker,
    worker_process: Callable[..., WorkerProcess],
    tmp_path: Path,
) -> None:
    async with TurnsClient(private_settings) as client:
        message = {"role": "user", "content": "hello"}
        finished = await client.submit(TurnRequest(model="scripted", messages=(message,), session_id="a"))
        await client.cancel(finished)
        waiting = await client.submit(TurnRequest(model="scripted", messages=(message,), session_id="b"))
        events = await client.events(finished)
    shutil.copytree(private_broker.directory / "appendonlydir", tmp_path / "backup" / "appendonlydir")
    private_broker.kill()
    shutil.rmtree(private_broker.directory / "appendonlydir")

    with EmbeddedBroker(tmp_path / "backup") as restored:
        settings = replace(private_settings, broker_url=restored.url, store_url=restored.url)
        async with TurnsClient(settings) as client:
            assert (await client.get(finished)).outcome == "cancelled"
            assert await client.events(finished) == events
            worker = worker_process(settings=settings)
            assert (await client.result(waiting, timeout=30)).outcome is not None
            end_all([worker])
