"""Two workers of which one lacks a model, and the script of another vanishes under it: no turn ends for that.

Each turn passes on the worker that can; while none can, its turns wait, are said to wait for that model, and go on when
the script is back.
"""

import asyncio
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome, TurnRequest
from api_client.workers.reason import Reason
from tests.fault.matrix import Stage
from tests.fault.staged import Seen
from tests.installation import WorkerProcess
from tests.support import json_lines, wait_until

_SCRIPT = """
- attempts:
    - - say: {text: "Eine Antwort.\\n\\n<!-- STEP: done -->", seconds: 0.2}
"""


def stage(long: bool) -> Seen:
    """Submit turns of both models; wrong is one that did not pass with its first attempt, and without a strike."""
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder), _SCRIPT, run_slots=2) as made:
        vanishing = made.meet / "vanishing.yaml"
        shutil.copy(made.script, vanishing)
        made.settings = replace(
            made.settings, models={"plain": f"scripted:{made.script}", "extra": f"scripted:{made.script}"}
        )
        made.start(1)
        uneven = made.worker(wait=False, models={"plain": f"scripted:{vanishing}"})
        uneven.wait_ready()
        return asyncio.run(_uneven(made, uneven, vanishing, 200 if long else 40))


async def _uneven(made: Stage, uneven: WorkerProcess, vanishing: Path, turns: int) -> Seen:
    async with TurnsClient(made.settings) as client:

        async def ask(number: int, model: str) -> str:
            asked = ({"role": "user", "content": "Frage"},)
            return await client.submitter.submit(TurnRequest(model=model, messages=asked, session_id=f"s{number}"))

        vanishing.unlink()
        turn_ids = [await ask(number, ("plain", "extra")[number % 2]) for number in range(turns)]
        ended = [await client.reader.await_result(turn_id, timeout=200) for turn_id in turn_ids]
        # Nobody can: the other worker loses its script too.
        kept = made.script.read_text()
        made.script.unlink()
        stranded = [await ask(turns + number, "plain") for number in range(4)]

        async def is_said() -> bool:
            found = (await client.workers.read_state()).waits
            said = [each for each in found if each.wait.reason is Reason.UNFIT]
            return sum(each.count for each in said) == len(stranded)

        await wait_until(is_said)
        made.script.write_text(kept)
        ended += [await client.reader.await_result(turn_id, timeout=200) for turn_id in stranded]
    wrong = sum(turn.outcome is not Outcome.PASSED or turn.attempt != 1 or turn.strikes != 0 for turn in ended)
    events = [line.get("event") for line in json_lines(uneven.log_file)]
    refused = sum(
        line.get("event") == "turn.refused" and line.get("why") == "elsewhere" for line in json_lines(uneven.log_file)
    )
    given_back = events.count("turn.not_here")
    most = max(turn.delivery for turn in ended)
    if not refused and not given_back:
        wrong += 1  # nothing was staged
    beside = f"{refused} left to the other worker, {given_back} given back, at most {most} deliveries of a turn"
    return Seen(len(ended), "turns beside a worker that lacks model or script", wrong, beside)
