"""Workers of containers with one host name and the same process ids: each counts, works and is drained alone."""

import asyncio
import subprocess
import tempfile
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from api_client.contract.worker_order import WorkerOrder
from tests.fault.matrix import Stage
from tests.fault.staged import Seen
from tests.installation import asked
from tests.support import wait_until

_WITHIN = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
_TWINS, _SLOTS = 3, 2
_SCRIPT = """
- when: ""
  attempts:
    - - say: "Eine Antwort.\\n\\n<!-- STEP: done -->"
"""


def stage(long: bool) -> Seen:
    """Start workers alike, and drain one after the other; wrong is a turn that did not pass."""
    if subprocess.run([*_WITHIN, "true"], check=False).returncode:
        pytest.skip("no process ids of its own can be given to a process here (unshare, util-linux)")
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder), _SCRIPT, run_slots=_SLOTS) as made:
        made.broker.start()
        for _ in range(_TWINS):
            made.worker(wait=False, within=_WITHIN)
        for worker in made.workers:
            worker.wait_ready()
        return asyncio.run(_drained(made, 40 if long else 8))


async def _drained(made: Stage, turns: int) -> Seen:
    async with TurnsClient(made.settings) as client:

        async def there(number: int) -> bool:
            standing = await client.workers.read_state()
            return (len(standing.recent_reports), standing.fleet.slots) == (number, number * _SLOTS)

        passed = 0
        await wait_until(lambda: there(_TWINS))
        for number, name in enumerate([each.name for each in await client.workers.read_reports()]):
            ids = [await client.submitter.submit(asked("frag", f"s{number}-{each}")) for each in range(turns)]
            ended = [await client.reader.await_result(turn_id, timeout=120) for turn_id in ids]
            passed += sum(turn.outcome is Outcome.PASSED for turn in ended)
            await client.workers.order_worker(name, WorkerOrder.DRAIN)
            await wait_until(lambda left=_TWINS - number - 1: there(left))
    return Seen(_TWINS * turns, "turns", _TWINS * turns - passed, f"{_TWINS} workers with one host name and process id")
