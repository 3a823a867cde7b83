"""Engines frozen by SIGSTOP while their agents finish: a finished run is not paid for again.

Each round freezes workers at the same moment for different times. One more worker stays awake and takes what it may.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from tests.fault.matrix import Stage
from tests.fault.staged import Seen
from tests.installation import asked
from tests.support import json_lines, wait_until

#: In seconds. A lease is over 4.5 s after the last beat by its holder's clock, and 6 s after it by the store's.
_LONG = tuple(half / 2 for half in range(2, 61))
_SHORT = (2.0, 5.0, 5.5, 6.0, 6.5, 12.0)
#: Workers that are frozen in a round, and turns that each of them holds.
_FROZEN, _TURNS = 12, 4
_SCRIPT = """
- when: ""
  attempts:
    - - say: "Ich fange an ... "
      - wait_for: {meet}/go
      - say: "und bin fertig.\\n\\n<!-- STEP: done -->"
"""


def stage(long: bool) -> Seen:
    """Freeze engines; wrong is a finished run that was started again, or a turn that did not pass."""
    freezes = _LONG if long else _SHORT
    rounds = [freezes[at : at + _FROZEN] for at in range(0, len(freezes), _FROZEN)]
    with tempfile.TemporaryDirectory() as folder:
        made = Stage(Path(folder), _SCRIPT, lease_seconds=6.0, run_slots=_TURNS)
        with made:
            made.start(min(_FROZEN, len(freezes)) + 1)
            return asyncio.run(_frozen(made, rounds))


async def _frozen(made: Stage, rounds: Sequence[Sequence[float]]) -> Seen:
    tried = wrong = adopted = 0
    async with TurnsClient(made.settings) as client:
        for number, freezes in enumerate(rounds):
            turn_ids = await _round(made, client, number, freezes)
            for turn_id in turn_ids:
                turn = await client.reader.await_result(turn_id, timeout=120)
                runs = _runs(made, turn_id)
                wrong += turn.outcome is not Outcome.PASSED or runs["start"] > 1 + runs["cut off"]
                adopted += turn.delivery > 1 and runs["start"] == 1
            tried += len(turn_ids)
    return Seen(tried, "turns whose agent finished while its engine was frozen", wrong, f"{adopted} adopted")


async def _round(made: Stage, client: TurnsClient, number: int, freezes: Sequence[float]) -> list[str]:
    """Fill all workers, freeze all but one, let the agents finish; the turns that a frozen one held."""
    go = made.meet / "go"
    go.unlink(missing_ok=True)
    sessions = [f"round-{number}-{each}" for each in range(len(made.workers) * _TURNS)]
    turn_ids = [await client.submitter.submit(asked("frag", session)) for session in sessions]
    await wait_until(lambda: all(_runs(made, turn_id)["start"] for turn_id in turn_ids))
    engines = [next(iter(worker.children().values())) for worker in made.workers[: len(freezes)]]
    held = {turn_id: (await client.reader.read_turn(turn_id)).worker for turn_id in turn_ids}
    for engine in engines:
        os.kill(engine, signal.SIGSTOP)
    begun = time.monotonic()
    go.touch()
    for seconds, engine in sorted(zip(freezes, engines, strict=True)):
        wake = begun + seconds
        await wait_until(lambda wake=wake: time.monotonic() >= wake)  # type: ignore[misc]
        os.kill(engine, signal.SIGCONT)
    frozen = made.workers[: len(freezes)]
    return [turn_id for turn_id, name in held.items() if any(worker.named(name) for worker in frozen)]


def _runs(made: Stage, turn_id: str) -> dict[str, int]:
    """How many runs of a turn were started, and how many of them were ended before they had finished."""
    lines = [line for line in json_lines(made.action_log) if line["turn"] == turn_id]
    started = [line["delivery"] for line in lines if line["event"] == "start"]
    finished = {line["delivery"] for line in lines if line["event"] == "end" and line["exit"] == 0}
    return {"start": len(started), "cut off": len(set(started) - finished)}
