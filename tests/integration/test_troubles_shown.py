"""Each trouble of docs/operations.md, made in a real installation: its command names it, and so does its page."""

from __future__ import annotations

import asyncio
import html
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import redis

from api_client.client import TurnsClient
from api_client.contract.phases import Phase
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.fault.test_broker_disk import fill, small_disk
from tests.html import Document
from tests.installation import Installation, asked, environ_of, run, turns, web
from tests.integration.test_stuck import refuses
from tests.support import wait_until
from worker.processes.broker import EmbeddedBroker

__all__ = ["small_disk"]

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
TABLE = TEXT[TEXT.index("### Troubles and where they show") : TEXT.index("## Pause and drain")]
SCRIPT = """
- when: Build
  attempts:
    - - write: {path: output/add.py, content: "def add(a, b:"}
      - say: Done.
- when: away
  attempts:
    - - error: {kind: transient, message: "HTTP 503: upstream is out"}
- attempts:
    - - usage: {input_tokens: 10, output_tokens: 5, cost_usd: 0.9}
      - say: "Fine.\\n\\n<!-- STEP: what -->"
"""
#: Trouble -> what its command says, and what its page does (patterns).
SHOWN = {
    "A phase waits for a person": (r"t0-\w+ .*build", r"parked Build add\.py"),
    "The store's disk is full": (
        r"MISCONF(?s:.*)make room on the store's disk",
        "MISCONF.*make room on the store's disk",
    ),
    "The store's memory is full": ("OOM(?s:.*)raise maxmemory", "OOM.*raise maxmemory"),
    "A worker is dead": (r"worker-\S+ +gone", r"worker-\S+ .*gone for"),
    "A model is paused": ("model scripted .*maintenance", "model scripted.*maintenance"),
    "A model's service fails": ("breaker scripted .*503", "breaker scripted.*errors in a row.*503"),
    "A day's budget is spent": (r"all +0\.9000 +0\.50 +180% +spent", r"all ?0\.9000 ?0\.50 ?180% ?spent"),
}


def rows() -> dict[str, tuple[str, str]]:
    """Trouble -> command, page."""
    found = [line.split("|")[1:-1] for line in TABLE.splitlines() if line.startswith("| ") and "`" in line]
    return {trouble.strip(): (command.strip(" `"), page.strip(" `")) for trouble, command, page in found}


def test_every_trouble_of_the_table_is_made_here() -> None:
    assert list(rows()) == list(SHOWN)


async def check(trouble: str, settings: Settings) -> None:
    """Both cells of a trouble's row."""
    command, page = rows()[trouble]
    by_command, by_page = SHOWN[trouble]

    def said() -> str:
        words = command.split()[1:]
        done = run(settings, *words)
        assert done.returncode in {0, 1}, done.stderr
        return done.stdout

    found = await asyncio.to_thread(said)
    assert re.search(by_command, found), f"{command}\n{found}"
    async with web(settings) as http:
        shown = html.unescape(Document((await http.get(page)).text).text)
    assert re.search(by_page, shown), f"{page}\n{shown}"


def ask(text: str, model: str = "scripted") -> TurnRequest:
    return asked(text, "s", model=model)


async def test_a_parked_phase(installation: Installation) -> None:
    installation.play(SCRIPT, locale="en")
    (installation.settings.root / "work").mkdir()
    installation.worker()
    phase = Phase(id="build", description="Build add.py.", output_files=("add.py",), max_attempts=1)
    client = installation.client
    [turn_id] = await client.submitter.submit_phases([phase], directory="work")
    await wait_until(lambda: is_parked(client, turn_id))
    await check("A phase waits for a person", installation.settings)
    await client.canceller.cancel(turn_id)


async def is_parked(client: TurnsClient, turn_id: str) -> bool:
    return (await client.reader.get(turn_id)).state == "parked"


async def test_a_full_disk_of_the_store(settings: Settings, small_disk: Path) -> None:
    with EmbeddedBroker(small_disk / "b") as broker:
        fill(small_disk / "filler")
        await wait_until(lambda: refuses(broker))
        await check("The store's disk is full", replace(settings, broker_url=broker.url, store_url=broker.url))


async def test_a_store_whose_memory_is_full(private_settings: Settings) -> None:
    with redis.Redis.from_url(private_settings.redis_url) as store:
        store.config_set("maxmemory", 1)
    await check("The store's memory is full", private_settings)


async def test_a_dead_worker(installation: Installation) -> None:
    installation.worker().kill()
    client = installation.client

    async def gone() -> bool:
        return any(line.state == "gone" for line in (await client.workers.standing()).workers)

    await wait_until(gone, 120)
    await check("A worker is dead", installation.settings)


async def test_a_paused_model(settings: Settings) -> None:
    words = ["pause", "model", "scripted", "--reason", "maintenance"]
    subprocess.run(turns(*words), env=environ_of(settings), check=True)
    await check("A model is paused", settings)


async def test_a_model_whose_service_fails(installation: Installation) -> None:
    away = {"breaker_errors": 2, "transient_retries": 100, "transient_delay_seconds": 0.05}
    installation.play(SCRIPT, locale="en", **away)
    installation.worker()
    client = installation.client
    turn_id = await client.submitter.submit(ask("away"))
    await wait_until(client.pauses.in_force)
    await check("A model's service fails", installation.settings)
    await client.canceller.cancel(turn_id)


async def test_a_spent_budget(installation: Installation) -> None:
    installation.play(SCRIPT, locale="en", budgets={"all": 0.5})
    installation.worker()
    client = installation.client
    await client.reader.result(await client.submitter.submit(ask("hello")), timeout=60)
    await check("A day's budget is spent", installation.settings)
