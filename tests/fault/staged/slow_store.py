"""A store behind a slow link, 200 ms for each command: no worker reports that it lost a turn that it ended itself."""

import asyncio
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from tests.chaos.proxy import tell
from tests.fault.matrix import Stage
from tests.fault.staged import Seen
from tests.installation import asked
from tests.support import json_lines, wait_for

#: Of a piece of data, each way, in seconds.
_DELAY = 0.1
_ALARMS = ("lease.fenced", "turn.fenced")
_SCRIPT = """
- when: ""
  attempts: [[{say: "Sofort.\\n\\n<!-- STEP: done -->"}]]
"""


def stage(long: bool) -> Seen:
    """Carry out turns over a slow link; wrong is an alarm about a turn that was delivered once and has passed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        link, control = f"unix://{folder}/link", str(folder / "control")
        lease = Settings().lease_seconds
        made = Stage(folder, _SCRIPT, store_url=link, broker_url=link, lease_seconds=lease, run_slots=8)
        links = {"all": [f"unix:{folder}/link", f"unix:{made.broker.socket}"]}
        proxy = subprocess.Popen([sys.executable, "-P", "-m", "tests.chaos.proxy", control, json.dumps(links)])
        try:
            with made:
                wait_for(lambda: Path(control).exists())
                made.start(1)
                return asyncio.run(_slow(made, control, 600 if long else 80))
        finally:
            proxy.kill()
            proxy.wait()


async def _slow(made: Stage, control: str, turns: int) -> Seen:
    near = replace(made.settings, store_url=made.broker.url, broker_url=made.broker.url)
    async with TurnsClient(near) as client:
        await tell(control, "all", "delay", _DELAY)
        turn_ids = [await client.submitter.submit(asked("frag", f"s{number}")) for number in range(turns)]
        ended = [await client.reader.await_result(turn_id, timeout=300) for turn_id in turn_ids]
        await tell(control, "all", "heal", 0.0)
    well = {turn.turn_id for turn in ended if turn.outcome and turn.outcome.success and turn.delivery == 1}
    alarms = [line for worker in made.workers for line in json_lines(worker.log_file) if line.get("event") in _ALARMS]
    false = {line.get("turn_id") for line in alarms} & well
    return Seen(turns, "turns over a link of 200 ms", len(false), f"{len(well)} passed with one delivery")
