"""``turns replay-policy`` over recorded attempts, records read included: time, CPU, and memory against their number.

Run: ``python -m tests.bench.rules.replay [ATTEMPTS]``. The engine carries out the economy corpus and the demo's answers
once, and their records are copied; then the real command judges them by ten rules.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from tests.bench.economy.corpus import cases
from tests.bench.economy.play import lay_out
from tests.bench.rules.policy import POLICY
from tests.installation import environ_of, turns
from tests.integration.engine import Bench, says
from worker.logs import configure_logging
from worker.processes.broker import EmbeddedBroker
from worker.runners.scripted import runner


async def record(settings: Settings, client: TurnsClient) -> list[tuple[str, int]]:
    """Turns of the corpus and of the demo, carried out by the engine: each with its number of attempts."""
    bench = Bench(settings, client)
    found = []
    for case in cases():
        locale = case.good.lang
        turn = await bench.outcome(says(case.first), says(case.good.text()), locale=locale, max_attempts=2)
        found.append((turn.turn_id, len(await client.reader.attempts(turn.turn_id))))
    for text in demo_answers():
        turn = await bench.outcome(says(text), max_attempts=1)
        found.append((turn.turn_id, len(await client.reader.attempts(turn.turn_id))))
    bench.close()
    return found


def demo_answers() -> list[str]:
    """What the demo's agent says."""
    folder = Path(runner.__file__).parent
    found: list[str] = []
    for path in sorted(folder.glob("demo*.yaml")):
        for rule in runner.load(path):
            found += ["".join(fields["text"] for name, fields in steps if name == "say") for steps in rule.lists]
    return [text for text in found if text.strip()]


def replayed(settings: Settings, policy: Path) -> tuple[dict[str, object], float, float, float]:
    """What the real command says; its seconds, CPU seconds, and most memory in MiB."""
    started = time.perf_counter()
    command = turns("replay-policy", "--policy", str(policy), "--since", "30d", "--json")
    process = subprocess.Popen(command, env=environ_of(settings), stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    return json.loads(said), time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


async def main() -> None:
    attempts = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        root = Path(folder) / "root"
        root.mkdir()
        lay_out(root)
        policy = root / "policy.yaml"
        policy.write_text(POLICY)
        settings = Settings(root=root, broker_url=broker.url, store_url=broker.url, log_level="error")
        configure_logging(settings)
        async with TurnsClient(settings) as client:
            recorded = await record(settings, client)
            print(f"{len(recorded)} recorded turns of the economy corpus and the demo, and copies of them")
            for wanted in (attempts // 10, attempts):
                other = replace(settings, namespace=f"bench-{wanted}")
                await copy_into(client, other, recorded, wanted)
                said, seconds, cpu, memory = await asyncio.to_thread(replayed, other, policy)
                print(
                    f"{wanted} attempts: {said['answers']} answers judged by ten rules in {seconds:.1f} s "
                    f"({cpu:.1f} s CPU), {memory:.0f} MiB at most; {said['rejected_now']} rejected now, "
                    f"{said['accepted_now']} accepted now"
                )


async def copy_into(client: TurnsClient, other: Settings, recorded: list[tuple[str, int]], attempts: int) -> None:
    """Copies of recorded turns in a namespace of their own, until there are so many attempts."""
    source, target, now = Keys(client.settings.namespace), Keys(other.namespace), int(time.time() * 1000)
    done = number = 0
    pipe = client.store.redis.pipeline(transaction=False)
    for turn_id, count in cycle(recorded):
        if done >= attempts:
            break
        copied = f"t0-{number:032x}"
        for part in ("", ":texts", ":attempts"):
            pipe.copy(source.turn(turn_id) + part, target.turn(copied) + part)
        pipe.hset(target.turn(copied), mapping={"id": copied, "finished_at": now - number})
        pipe.zadd(target.finished, {copied: now - number})
        done, number = done + count, number + 1
        if number % 500 == 0:
            await pipe.execute()
    await pipe.execute()


if __name__ == "__main__":
    asyncio.run(main())
