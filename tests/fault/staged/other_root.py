"""Phases with a worker on another HELIX_ROOT: they run where their folder is, and every place says what is wrong."""

import asyncio
import tempfile
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.phase import Phase
from api_client.contract.turn import Outcome
from tests.fault.matrix import Stage
from tests.fault.staged import Seen
from tests.installation import WorkerProcess
from tests.support import json_lines, wait_until

_SCRIPT = """
- attempts:
    - - write: {path: output/add.py, content: "def add(a, b): return a + b"}
      - say: {text: "Fertig.", seconds: 0.2}
"""


def stage(long: bool) -> Seen:
    """Submit phases, each of a folder of its own; wrong is one that did not pass, or a silent log."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Stage(Path(folder), _SCRIPT, run_slots=2, sandbox="off", locale="en") as made,
    ):
        made.start(1)
        root = Path(folder) / "other-root"
        root.mkdir()
        other = made.worker(wait=False, root=root)
        other.wait_ready()
        return asyncio.run(_phases(made, other, 100 if long else 20))


async def _phases(made: Stage, other: WorkerProcess, count: int) -> Seen:
    phase = Phase(id="build", description="Build add.py.", output_files=("add.py",), max_attempts=1)
    async with TurnsClient(made.settings) as client:
        turn_ids = []
        for number in range(count):
            (made.settings.root / f"work{number}").mkdir()
            turn_ids += await client.phases.submit_phases([phase], directory=f"work{number}")
        ended = [await client.reader.await_result(turn_id, timeout=200) for turn_id in turn_ids]

        async def is_said() -> bool:
            return "sessions shared" in await client.workers.read_faults()

        await wait_until(is_said)
    logged = [line for worker in made.workers for line in json_lines(worker.log_file)]
    wrong = sum(turn.outcome is not Outcome.PASSED or turn.attempt != 1 or turn.strikes != 0 for turn in ended)
    left = sum(line.get("event") == "turn.not_here" for line in json_lines(other.log_file))
    apart = sum(line.get("event") == "sessions.not_shared" for line in logged)
    if not left or not apart:
        wrong += 1  # nothing was staged, or the log says nothing
    beside = f"{left} left to the worker that has their folder; the log named the other root {apart}×"
    return Seen(count, "phases beside a worker with another HELIX_ROOT", wrong, beside)
