"""How long a question about 30 days takes: ``python -m tests.bench.stats [--models N]``.

Fills a server of its own with 40 days of counters, every hour and day as full as a busy installation's, and asks as
``turns stats`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from api_client.client import TurnsClient
from api_client.contract.counters import BOUNDS_MS, COUNTERS
from api_client.contract.keys import BUCKETS, Keys
from api_client.contract.marker import STEPS
from api_client.contract.settings import Settings
from api_client.contract.turn import DEFAULT_VALIDATORS, Outcome
from api_client.figures.stats import BREAKDOWNS
from worker.enforcement import CODES
from worker.processes.broker import EmbeddedBroker

_ROUNDS = 15


def fields(models: int) -> list[str]:
    """Counters of an installation where everything happens."""
    names = [f"model-{number}" for number in range(models)]
    found = ["turn.submitted", "delivery.started", "delivery.lost|running", "delivery.handed_over"]
    for model in names:
        for flow in ("v2", "v3"):
            for step in (*sorted(STEPS), "unknown"):
                found += [f"turn.finished|{o.value}|{model}|{flow}|{step}|0" for o in Outcome if o.success]
                found += [f"turn.finished|passed_after_retry|{model}|{flow}|{step}|1"]
            found += [f"turn.finished|{o.value}|{model}|{flow}|none|1" for o in Outcome if not o.success]
        found += [f"attempt.ended|{verdict}|{model}" for verdict in ("complete", "incomplete", "transient", "error")]
        found += [f"attempt.judged|{decision}|{model}" for decision in ("accept", "retry", "fallback", "fail")]
        found += [f"{name}|{model}" for name in COUNTERS if name.startswith(("tokens.", "cost."))]
        found += [f"time.agent.ms|{model}", *(f"time.agent.le|{model}|{bound}" for bound in BOUNDS_MS)]
    for name in ("wait", "validation", "recovery", "turn"):
        found += [f"time.{name}.ms", *(f"time.{name}.le|{bound}" for bound in BOUNDS_MS)]
    found += [f"validator.judged|{name}|{model}" for name in DEFAULT_VALIDATORS for model in names]
    for decision in ("retry", "fallback", "fail"):
        found += [f"validator.rejected|{name}|{decision}|{model}" for name in DEFAULT_VALIDATORS for model in names]
        found += [f"code.rejected|{code}|{decision}" for code in CODES]
    return found


async def fill(redis: Redis, namespace: str, names: list[str]) -> None:
    """Every minute of the last hours, every hour and every day of 40 days."""
    keys, now = Keys(namespace), time.time()
    counted: dict[Any, Any] = dict.fromkeys(names, 3)
    for size, seconds in BUCKETS.items():
        many = {"minute": 180, "hour": 40 * 24, "day": 41}[size]
        pipe = redis.pipeline(transaction=False)
        for back in range(many):
            pipe.hset(keys.bucket(size, now - back * seconds), mapping=counted)
        await pipe.execute()


async def measure(models: int) -> None:
    """Print the time of each question."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        settings = Settings(root=Path(folder), broker_url=broker.url, store_url=broker.url)
        names = fields(models)
        async with TurnsClient(settings) as client, Redis.from_url(settings.redis_url) as redis:
            await fill(redis, settings.namespace, names)
            print(f"{len(names)} counters in each bucket ({models} models); {_ROUNDS} rounds each, milliseconds")
            print(f"{'question':28} {'median':>8} {'slowest':>8}")
            for by in ("", *BREAKDOWNS):
                took = []
                for _ in range(_ROUNDS):
                    begin = time.perf_counter()
                    await client.figures.stats(30 * 86_400, by)
                    took.append((time.perf_counter() - begin) * 1000)
                print(f"{'30 days' + (f' by {by}' if by else ''):28} {statistics.median(took):8.1f} {max(took):8.1f}")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1, help="models with counters of their own")
    asyncio.run(measure(parser.parse_args().models))


if __name__ == "__main__":
    main()
