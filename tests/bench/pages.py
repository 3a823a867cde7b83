"""``python -m tests.bench.pages``: memory and pages with 10,000 turns finished and 1,000 at work."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.web.app import create_app
from tests.history import Past, Played
from tests.integration.test_engine import FIRST, GOOD, NO_MARKER, Bench, Play, ends, says
from tests.unit.web.conftest import caller
from worker.logs import configure_logging
from worker.processes.broker import EmbeddedBroker
from worker.runners.base import Verdict

FINISHED, RUNNING = 10_000, 1_000
_PLAYS: list[tuple[int, list[Play]]] = [  # how often of a hundred, and what the agent does
    (70, [says(GOOD)]),
    (20, [says(NO_MARKER), says(GOOD)]),
    (6, [says(NO_MARKER)] * 3),
    (4, [ends(Verdict.INCOMPLETE)] * 3),
]
_ROUNDS = 30


async def main() -> None:
    """Fill a store of our own, then ask for each page again and again."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        root = Path(folder) / "root"
        root.mkdir()
        settings = Settings(root=root, broker_url=broker.url, store_url=broker.url, log_level="error")
        configure_logging(settings)
        async with TurnsClient(settings) as client:
            before = await _memory(client)
            turn_id = await fill(settings, client)
            used = (await _memory(client) - before) / (FINISHED + RUNNING) / 1024
            print(f"{used:.1f} KiB of the store's memory a turn, its events, attempts and counters included\n")
            await measure(settings, turn_id)


async def _memory(client: TurnsClient) -> int:
    return int((await client.store.redis.info("memory"))["used_memory"])


async def fill(settings: Settings, client: TurnsClient) -> str:
    """Play a turn of each kind, and copy them over the last day; returns one of those that were played."""
    bench, past = Bench(settings, client), Past(settings)
    played: list[Played] = []
    for _, plays in _PLAYS:
        before = past.counters()
        turn = await bench.outcome(*plays)
        played.append(Played(turn.turn_id, past.counters() - before))
    running = await bench.submit(session_id="running")
    bench.ledger.claim(running, "running", FIRST)
    bench.leases.close()
    chosen, now = random.Random(1), time.time()
    weights = [weight for weight, _ in _PLAYS]
    for _ in range(FINISHED):
        past.finished(chosen.choices(played, weights)[0], now - chosen.random() * 86_400)
    for _ in range(RUNNING):
        past.unfinished(running, now - chosen.random() * 600)
    past.write_counters()
    return played[1].turn_id


async def measure(settings: Settings, turn_id: str) -> None:
    """Ask for each page, one after the other, through the whole application but without a network."""
    app = create_app(settings)
    pages = {
        "overview, 24 h": "/overview",
        "overview, 1 h": "/overview?span=1h",
        "overview, 30 d": "/overview?span=30d",
        "turns": "/turns",
        "turns, the failed": "/turns?status=failed",
        "turns, of one session": "/turns?session=chat-9999",
        "turns, worker lost": "/turns?lost=1",
        "turns, running": "/turns?status=running",
        "one turn": f"/turns/{turn_id}",
    }
    print(f"{FINISHED:,} finished, {RUNNING:,} running turns; {_ROUNDS} requests each\n")
    print(f"{'page':<24}{'median':>10}{'slowest':>10}")
    async with app.router.lifespan_context(app), caller(app) as http:
        for name, address in pages.items():
            taken = []
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                answer = await http.get(address)
                taken.append((time.perf_counter() - began) * 1000)
                assert answer.status_code == 200, answer.text
            print(f"{name:<24}{statistics.median(taken):>7.0f} ms{max(taken):>7.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
