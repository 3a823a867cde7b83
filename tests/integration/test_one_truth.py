"""Ten troubles, each staged with real parts: every place gives the same reason why a turn waits.

Asked are `turns doctor`, `turns list`, `turns show`, `turns top`, the overview, the list's page, the turn's page, the
API and /readyz. What `turns show` says is what the others must say; figures may differ by the time that passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from api_client.api_keys import make_token
from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.index.lists import Search
from api_client.pauses import BREAKER, Pause
from tests.fault.test_broker_disk import fill, small_disk
from tests.html import Document
from tests.installation import Installation, run, web
from tests.integration.test_stuck import refuses
from tests.support import wait_until
from worker.processes.broker import EmbeddedBroker

__all__ = ["small_disk"]

SCRIPT = """
- when: away
  attempts:
    - - error: {kind: transient, message: "HTTP 503: upstream is out"}
- when: limited
  attempts:
    - - error: {kind: transient, message: "HTTP 429: too many requests", retry_after: 600}
- when: slow
  attempts:
    - - say: {text: "Fine.\\n\\n<!-- STEP: what -->", seconds: 300, pieces: 300}
- attempts:
    - - usage: {input_tokens: 10, output_tokens: 5, cost_usd: 0.9}
      - say: "Fine.\\n\\n<!-- STEP: what -->"
"""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A trouble that was staged.

    Attributes:
        settings: of the installation that has it.
        turn_id: a turn that waits for that reason; one that ended where none does.
        code: of the reason. check: what doctor and /readyz call it where an alert stands for it.
    """

    settings: Settings
    turn_id: str
    code: str
    check: str = ""


async def ask(client: TurnsClient, text: str = "hello", session: str = "s", model: str = "scripted") -> str:
    asked = ({"role": "user", "content": text},)
    request = TurnRequest(model=model, messages=asked, session_id=session)
    return await client.submitter.submit(request)


async def runs(client: TurnsClient, turn_id: str) -> None:
    async def running() -> bool:
        return (await client.reader.get(turn_id)).state == "running"

    await wait_until(running)


Staged: TypeAlias = Callable[[Installation, Path], AbstractAsyncContextManager[Trouble]]
TROUBLES: dict[str, Staged] = {}


def staged(name: str) -> Callable[[Staged], Staged]:
    def note(made: Staged) -> Staged:
        TROUBLES[name] = made
        return made

    return note


@staged("an open breaker")
@asynccontextmanager
async def _breaker(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    away: dict[str, Any] = {"breaker_errors": 2, "breaker_seconds": 900.0, "transient_retries": 9}
    used = installation.play(SCRIPT, transient_delay_seconds=0.05, **away)
    installation.worker()
    client = installation.client
    await ask(client, "away", "a")

    async def is_open() -> bool:
        return any(each.what == BREAKER for each in await client.pauses.in_force())

    await wait_until(is_open)
    yield Trouble(settings=used, turn_id=await ask(client, session="b"), code="breaker")


@staged("a paused model")
@asynccontextmanager
async def _paused(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT)
    installation.worker()
    client = installation.client
    await client.pauses.pause(Pause(what="model", name="scripted", reason="maintenance", by="anna"))
    yield Trouble(settings=used, turn_id=await ask(client), code="pause")


@staged("a session's first turn at work")
@asynccontextmanager
async def _session(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT, run_slots=4)
    installation.worker()
    client = installation.client
    await runs(client, await ask(client, "slow"))
    yield Trouble(settings=used, turn_id=await ask(client), code="session")


@staged("back-off after 429")
@asynccontextmanager
async def _delay(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT)
    installation.worker()
    client = installation.client
    yield Trouble(settings=used, turn_id=await ask(client, "limited"), code="delay")


@staged("a spent budget")
@asynccontextmanager
async def _budget(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT, budgets={"all": 0.5})
    installation.worker()
    client = installation.client
    turn_id = await ask(client)
    await client.reader.result(turn_id, timeout=60)
    yield Trouble(settings=used, turn_id=turn_id, code="budget")


@staged("no worker")
@asynccontextmanager
async def _nobody(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT)
    client = installation.client
    yield Trouble(settings=used, turn_id=await ask(client), code="no_worker", check="workers helix.run")


@staged("no worker for the model")
@asynccontextmanager
async def _unfit(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT)
    installation.worker(
        settings=replace(used, models={"another": used.models["scripted"], "scripted": "scripted:gone.yaml"})
    )
    client = installation.client
    yield Trouble(settings=used, turn_id=await ask(client), code="unfit")


@staged("a sick host")
@asynccontextmanager
async def _sick(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT)
    installation.worker()
    used.sessions_dir.rename(used.sessions_dir.with_name("sessions-away"))
    used.sessions_dir.write_text("no folder")
    client = installation.client

    async def is_sick() -> bool:
        return any(each.sick for each in await client.workers.reported())

    await wait_until(is_sick)
    yield Trouble(settings=used, turn_id=await ask(client), code="sick")


@staged("a full disk of the store")
@asynccontextmanager
async def _disk(installation: Installation, disk: Path) -> AsyncIterator[Trouble]:
    with EmbeddedBroker(disk / "b") as broker:
        used = installation.play(SCRIPT, broker_url=broker.url, store_url=broker.url)
        client = installation.client
        turn_id = await ask(client)
        fill(disk / "filler")
        await wait_until(lambda: refuses(broker))
        yield Trouble(settings=used, turn_id=turn_id, code="store")
        (disk / "filler").unlink()


@staged("no free slot")
@asynccontextmanager
async def _slot(installation: Installation, _disk: Path) -> AsyncIterator[Trouble]:
    used = installation.play(SCRIPT, run_slots=1)
    installation.worker()
    client = installation.client
    await runs(client, await ask(client, "slow", "a"))
    yield Trouble(settings=used, turn_id=await ask(client, session="b"), code="slot")


def plain(text: str) -> str:
    """A text as it is compared: one line, each figure alike."""
    return re.sub(r"\d+(\.\d+)?", "#", " ".join(html.unescape(text).split()))


async def asked(settings: Settings, *words: str) -> str:
    done = await asyncio.to_thread(run, settings, *words)
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


async def pages(settings: Settings, turn_id: str) -> dict[str, Any]:
    """What an operator's browser and programs are shown."""
    async with web(settings, authorization=f"Bearer {make_token(settings.token_path)}") as http:
        paths = {"overview": "/overview", "list's page": "/turns", "turn's page": f"/turns/{turn_id}"}
        shown = {name: plain(Document((await http.get(path)).text).text) for name, path in paths.items()}
        api = (await http.get(f"/v1/turns/{turn_id}")).json()["waits"]
        return {**shown, "api": api, "readyz": (await http.get("/readyz")).json()}


@pytest.mark.parametrize("name", TROUBLES)
async def test_every_place_gives_the_same_reason(
    name: str, installation: Installation, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    disk = request.getfixturevalue("small_disk") if name == "a full disk of the store" else tmp_path
    installation.change(locale="en")
    async with TROUBLES[name](installation, disk) as trouble:
        turn_id, code, client = trouble.turn_id, trouble.code, installation.client
        if code != "budget":  # that keeps no stored turn back

            async def waits() -> bool:
                found = await client.workers.waits([await client.reader.get(turn_id)])
                return bool(found) and found[turn_id].reason == code

            await wait_until(waits)
        await compared(trouble)
        if code not in {"budget", "store"}:
            client = installation.client
            for each in (await client.lists.page(Search())).turns:
                with contextlib.suppress(Exception):
                    await client.canceller.cancel(each.turn_id)


async def compared(trouble: Trouble) -> None:
    """Ask every place, and compare."""
    used, turn_id, code = trouble.settings, trouble.turn_id, trouble.code
    wait = json.loads(await asked(used, "show", turn_id, "--json"))["waits"]
    listed = {each["turn_id"]: each["waits"] for each in json.loads(await asked(used, "list", "--json"))["turns"]}
    doctor = json.loads(await asked(used, "doctor", "--json"))["findings"]
    seen = await pages(used, turn_id)
    seen |= {"top": plain(await asked(used, "top", "--once"))}
    if code == "budget":
        assert (wait, listed[turn_id], seen["api"]) == (None, None, None)
        words = shown = "a day's budget is spent: all"
    else:
        assert (wait["reason"], listed[turn_id]["reason"], seen["api"]["reason"]) == (code, code, code)
        words, shown = wait["words"], wait["words"].partition(": ")[0]
        assert plain(listed[turn_id]["words"]) == plain(seen["api"]["words"]) == plain(words)
        assert plain(shown) in plain(await asked(used, "show", turn_id))
        assert plain(shown) in plain(await asked(used, "list"))
        assert plain(shown) in seen["list's page"]
        assert plain(words) in seen["turn's page"]
        assert ("at work" in seen["turn's page"]) == (code == "slot"), "that says it of others"
    # Of a session's turns the installation says that they wait for each other, not for which.
    of_all = shown if code == "session" else words
    assert plain(of_all) in seen["overview"]
    assert plain(of_all)[:80] in seen["top"]
    if code == "store":
        [finding] = [each for each in doctor if each["check"] == "store"]
        assert finding["state"] == "wrong"
        assert "MISCONF" in finding["message"]
        assert "MISCONF" in words
    else:
        said = [each for each in doctor if each["check"] in {code, f"waits {code}", trouble.check}]
        assert said, [each["check"] for each in doctor]
        assert any(plain(of_all) in plain(each["message"]) for each in said), said
    assert {code, trouble.check} & set(seen["readyz"]["why"]), seen["readyz"]
    assert ("nothing is stuck" in seen["overview"]) == (code in {"session", "delay", "slot"})
