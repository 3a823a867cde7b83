"""``python -m tests.bench.lists``: how long lists take with 100,000 finished turns and 1,000 that wait."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx2

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.installation import web
from tests.integration.engine import GOOD, NO_MARKER, Bench, says
from worker.logs import configure_logging
from worker.processes.broker import EmbeddedBroker

FINISHED, WAITING, ROUNDS = 100_000, 1_000, 15
#: Milliseconds each page and call may take on two cores.
TARGET_MS = 200
_QUERIES = (
    "", "sort=oldest", "status=failed", "status=unfinished", "model=scripted", "model=nobody", "session=nobody",
    "since=1h", "rule=step_marker", "rule=nobody", "text=geht", "text=nobody+says+this", "lost=1",
)  # fmt: skip
_AT_ONCE = 2_000


async def main() -> None:
    """Fill a separate store, then ask for each list again and again."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        root = Path(folder) / "root"
        root.mkdir()
        settings = Settings(root=root, broker_url=broker.url, store_url=broker.url, log_level="error", max_unfinished=0)
        configure_logging(settings)
        async with TurnsClient(settings) as client:
            turn_id = await fill(settings, client)
            await measure(settings, turn_id)


async def fill(settings: Settings, client: TurnsClient) -> str:
    """One passed and one failed turn, copied over the last ten days; returns the id of one."""
    bench = Bench(settings, client)
    passed = await bench.outcome(says(GOOD))
    failed = await bench.outcome(
        says(NO_MARKER), says(NO_MARKER), max_attempts=2, policy={"step_marker": ("retry", "fail")}
    )
    keys, now = Keys(settings.namespace), int(time.time() * 1000)
    for start in range(0, FINISHED, _AT_ONCE):
        pipe = client.store.redis.pipeline(transaction=False)
        for number in range(start, start + _AT_ONCE):
            source = (failed if number % 10 == 0 else passed).turn_id
            turn_id, at = f"t0-{number:032x}", now - number * 8640
            for part in ("", ":texts", ":attempts"):
                pipe.copy(keys.turn(source) + part, keys.turn(turn_id) + part)
            pipe.hset(keys.turn(turn_id), mapping={"id": turn_id, "finished_at": at, "created_at": at - 900})
            pipe.zadd(keys.finished, {turn_id: at})
        await pipe.execute()
    message = ({"role": "user", "content": "Wie geht das?"},)
    for number in range(WAITING):
        await client.submitter.submit(TurnRequest(model="scripted", messages=message, session_id=f"s{number}"))
    return passed.turn_id


async def measure(settings: Settings, turn_id: str) -> None:
    """Each list over HTTP and as a page, its first page and the one behind it."""
    slow = 0
    async with web(settings) as http:
        print(f"{FINISHED:,} finished turns, {WAITING:,} that wait; milliseconds, median and slowest of {ROUNDS}\n")
        for query in _QUERIES:
            for path in ("/v1/turns", "/turns"):
                slow += await _row(http, f"{path}?{query}")
        following = (await http.get("/v1/turns?status=finished")).json()["next"]
        for path in (
            f"/v1/turns?cursor={following}",
            f"/turns?cursor={following}",
            f"/v1/turns/{turn_id[:12]}",
            "/workers",
        ):
            slow += await _row(http, path)
    print(f"\n{slow} of them above {TARGET_MS} ms at the median")


async def _row(http: httpx2.AsyncClient, address: str) -> int:
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = await http.get(address)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, (address, answer.text)
    median = statistics.median(took)
    print(f"{address[:60]:60} {median:7.0f} {max(took):7.0f}")
    return median > TARGET_MS


if __name__ == "__main__":
    asyncio.run(main())
