"""When a killed worker's turns start again while a queue waits: ``python -m tests.lab.bench.recovery [--queued N]``.

Two workers of eight slots with the default settings of leases and reapers. Once their queue is full, one process is
killed; for each turn that it held: seconds from the SIGKILL to its agent's next start. Until the queue is empty.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.fault.matrix import Stage
from tests.lab.bench.sweeper import swept
from tests.support import wait_until

SLOTS, SECONDS = 8, 2.0
SCRIPT = f"""
- attempts:
    - - wait: {SECONDS}
      - say: "fertig.\\n\\n<!-- STEP: done -->"
"""
#: From one kill to the next, in seconds: longer than a recovery takes.
PAUSE = 15.0


def starts(stage: Stage) -> list[dict[str, Any]]:
    """Every agent's start, in order."""
    lines = stage.action_log.read_text().splitlines() if stage.action_log.exists() else []
    return [line for line in map(json.loads, lines) if line["event"] == "start"]


async def measure(folder: Path, queued: int) -> tuple[list[float], int]:
    """Seconds of each recovery, and how many agents were started a second time."""
    default = Settings()
    models = {"scripted": f"inline:{folder}/meet/script.yaml"}
    with Stage(
        folder,
        SCRIPT,
        models=models,
        run_slots=SLOTS,
        lease_seconds=default.lease_seconds,
        reap_seconds=default.reap_seconds,
        announce_seconds=default.announce_seconds,
        failpoint="",
    ) as stage:
        stage.start(workers=2)
        async with TurnsClient(stage.settings) as client:
            messages = ({"role": "user", "content": "hello"},)
            ids = [
                await client.submitter.submit(
                    TurnRequest(model="scripted", messages=messages, session_id=f"s-{number}")
                )
                for number in range(queued)
            ]
            results = asyncio.gather(*(client.reader.await_result(turn_id, timeout=600) for turn_id in ids))
            killed: list[tuple[float, set[str]]] = []
            draw = random.Random(1)
            while len({line["turn"] for line in starts(stage)}) < queued - 2 * SLOTS:
                await wait_until(lambda: len(starts(stage)) >= 2 * SLOTS)
                victim = draw.choice(stage.workers).children()["1"]
                listed, now = starts(stage), time.monotonic()
                os.kill(victim, signal.SIGKILL)
                young = [line for line in listed if line["pid"] == victim and now - line["monotonic"] < SECONDS - 0.3]
                killed.append((now, {line["turn"] for line in young}))
                await asyncio.sleep(PAUSE)
            turns = await results
        listed = starts(stage)
        took = [
            min(line["monotonic"] - at for line in listed if line["turn"] == turn and line["monotonic"] > at)
            for at, held in killed
            for turn in held
        ]
        return sorted(took), len(listed) - len(turns)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.recovery", description=__doc__)
    parser.add_argument("--queued", type=int, default=500)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="turns-recovery-", ignore_cleanup_errors=True) as name, swept(Path(name)):
        took, again = asyncio.run(measure(Path(name), options.queued))
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    print(
        f"{options.queued} queued: {len(took)} runs of killed workers started again after {p50:.1f} s (p50), "
        f"{p99:.1f} s (p99), {took[-1]:.1f} s (longest); {again} agents started twice; load {load:.1f}"
    )


if __name__ == "__main__":
    main()
