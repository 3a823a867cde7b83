"""``make screenshots``: the pictures of docs/images, taken in a real browser from a real installation.

The turns that are shown were played by the scripted agent. The day before them is copied from these (tests/history.py).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.turn import TurnState
from api_client.overview import read_overview
from tests.browser.browsing import asked, browse, installation, missing, store_of, submitted, suspended
from tests.history import Past, Played
from tests.support import processes_with, wait_until

PICTURES = Path(__file__).parents[2] / "docs" / "images"
ADR = "Write an ADR about replacing cron by Celery Beat."
LONG = "Explain in detail how a lease detects a crashed worker."
RETRIED = "Why do we lose messages when we restart?"
SUSPENDED = "Write an ADR about invoices made from events."
#: What is asked, and how often of a hundred turns of the day before.
ASKED = {
    "How should we redeliver failed webhooks?": 68,
    RETRIED: 14,
    ADR: 9,
    "Can you help us to clean up our log files?": 6,
    SUSPENDED: 3,
}
#: The same a week before.
WEEK_BEFORE = (50, 30, 9, 6, 5)
_LARGEST = 200_000
MODELS = {"scripted": "scripted", "assistant": "command:agent.yaml"}
NOTING_AGENT = Path(__file__).parents[1] / "tools" / "noting_agent.py"
_PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def main() -> None:
    """Take them all, and look that none is too large."""
    if reason := missing():
        sys.exit(f"make screenshots: {reason}")
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        installation(Path(folder), **_equip(Path(folder))) as told,
    ):
        passed, waiting, calling = asyncio.run(_fill(told))
        taken = threading.Event()
        busy = threading.Thread(target=lambda: asyncio.run(_keep_busy(told, taken)))
        busy.start()
        try:
            _take(told, passed, waiting, calling)
        finally:
            taken.set()
            busy.join()
    for file in sorted(PICTURES.glob("*.png")):
        print(f"{file.name}  {file.stat().st_size // 1000} kB")
        assert file.stat().st_size < _LARGEST


async def _keep_busy(told: dict[str, Any], taken: threading.Event) -> None:
    """Hand in turns, one a second, so that agents are at work in the pictures."""
    async with TurnsClient(store_of(told)) as client:
        for message in itertools.cycle((LONG, RETRIED, LONG)):
            await client.submitter.submit(asked(message))
            if await asyncio.to_thread(taken.wait, 1):
                return


def _equip(root: Path) -> dict[str, str]:
    """Add the server of docs/tools.md and an agent that calls its tools; return the variables that say so."""
    program = _PYTHON_BLOCK.findall((PICTURES.parent / "tools.md").read_text())[0]
    server = f'[tools.notes]\ncommand = ["{sys.executable}", "{{root}}/tools/notes.py"]\nfolders = ["tools"]\n'
    for name, text in {
        "tools/notes.py": program,
        ".helix/helix.toml": server,
        "agent.yaml": f"program: {sys.executable}\narguments: [{NOTING_AGENT}]\ncomplete: {{exit_codes: [0]}}\n",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    models = ",".join(f"{name}={runner}" for name, runner in MODELS.items())
    return {"HELIX_MODELS": models, "HELIX_SANDBOX": "off"}


async def _call_tools(client: TurnsClient) -> str:
    """Play a turn that calls a tool which a person has to approve; return its id."""
    turn_id = await client.submitter.submit(replace(asked("Note that we ship on Friday."), model="assistant"))

    async def is_suspended() -> bool:
        return (await client.reader.read_turn(turn_id)).state is TurnState.SUSPENDED

    async def ended() -> bool:
        return bool((await client.reader.read_turn(turn_id)).outcome)

    await wait_until(is_suspended)
    await client.inbox.decide_turn(turn_id, "approve", by="ada")
    await wait_until(ended)
    return turn_id


async def _fill(told: dict[str, Any]) -> tuple[str, str, str]:
    """Play turns and copy them over the last day; return one that passed, one suspended, and one with tool calls."""
    settings = replace(store_of(told), models=MODELS)
    past, played, found = Past(settings), list[Played](), {}
    async with TurnsClient(settings) as client:
        for message in ASKED:
            before = past.counters()
            found[message] = submitted_and_ended(told["environ"], message)
            played.append(Played(found[message], past.counters() - before))
        await _kill_a_worker(client, told)
        calling = await _call_tools(client)
        waiting = await suspended(client, SUSPENDED)
    chosen, now = random.Random(7), time.time()
    for hour in range(24):
        busy = 12 + int(28 * (1 + math.sin((hour - 6) / 24 * 2 * math.pi)))  # people work by day
        for turn in chosen.choices(played, list(ASKED.values()), k=busy):
            past.finished(turn, now - hour * 3600 - chosen.random() * 3000 - 400, waited=chosen.expovariate(0.5))
        for turn in chosen.choices(played, WEEK_BEFORE, k=busy // 3):
            past.finished(turn, now - 7 * 86_400 - hour * 3600 - chosen.random() * 3000 - 400)
    past.write_counters()
    return found[ADR], waiting, calling


async def _kill_a_worker(client: TurnsClient, told: dict[str, Any]) -> None:
    """A turn loses its worker to SIGKILL, and is finished by the next."""
    turn_id = submitted(told["environ"], LONG)

    async def writes() -> bool:
        return (await client.reader.read_outline(turn_id)).pieces > 2

    async def ended() -> bool:
        return bool((await client.reader.read_turn(turn_id)).outcome)

    async def workers() -> int:
        return (await read_overview(client)).fleet.agents

    before = await workers()
    await wait_until(writes)
    for pid, command in processes_with(told["environ"]["HELIX_ROOT"]).items():
        if " -n worker-" in command:
            os.kill(pid, signal.SIGKILL)
    await wait_until(ended)

    async def as_before() -> bool:  # the killed ones are forgotten after a while
        return await workers() == before

    await wait_until(as_before)


def submitted_and_ended(environ: dict[str, str], message: str) -> str:
    """A turn that has ended, whether it passed or not."""
    command = [sys.executable, "-c", "from worker.cli import main; main()", "submit", "--wait", message]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stderr.split()[1]


def _take(told: dict[str, Any], passed: str, waiting: str, calling: str) -> None:
    web, flower = told["web_url"], told["flower_url"]
    shape = {"viewport": {"width": 1240, "height": 990}}
    login = {"http_credentials": {"username": "turns", "password": told["flower_password"]}}
    browse(
        ["new", shape],
        ["goto", f"{web}/overview"],
        ["wait", "section[aria-labelledby=working] li:nth-child(3)"],
        ["shot", str(PICTURES / "overview.png"), False],
        ["new", {"viewport": {"width": 1060, "height": 1640}}],
        ["goto", f"{web}/turns/{passed}"],
        ["shot", str(PICTURES / "turn.png"), False],
        ["new", {"viewport": {"width": 1060, "height": 1010}}],
        ["goto", f"{web}/turns/{waiting}"],
        ["shot", str(PICTURES / "decide.png"), False],
        ["new", {"viewport": {"width": 1060, "height": 960}}],
        ["goto", f"{web}/turns/{calling}"],
        ["shot", str(PICTURES / "tool-calls.png"), False],
        ["new", {"viewport": {"width": 1240, "height": 940}}],
        ["goto", f"{web}/turns"],
        ["shot", str(PICTURES / "turns.png"), False],
        ["new", {**shape, "color_scheme": "dark"}],
        ["goto", f"{web}/overview"],
        ["shot", str(PICTURES / "overview-dark.png"), False],
        ["new", {**login, "viewport": {"width": 1680, "height": 640}}],
        ["goto", f"{flower}/tasks"],
        ["wait", "td:has-text('MISSING_STEP_MARKER')"],
        ["shot", str(PICTURES / "flower.png"), False],
    )


if __name__ == "__main__":
    main()
