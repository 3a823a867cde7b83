"""Troubles, each staged with real parts: every place gives the same reason why a turn waits, or what is wrong.

Asked are `turns doctor`, `turns turn list`, `turns turn show`, `turns worker list`, `turns stats top`, the overview,
the list's page, the turn's page, the API, /readyz, /metrics and the alert rules. What `turns turn show` says is what
the others must say; figures may differ by the time that passes. Where docs/operations.md has a row for the trouble, its
command and its page show it.
"""

import contextlib
import html
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from api_client.api_keys import make_token
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from api_client.index.search import Search
from api_client.pauses.pause import BREAKER
from tests.fault.staged.disk_full import fill
from tests.fault.staged.disk_full import small_disk as mounted
from tests.fault.test_broker_disk import small_disk
from tests.html import Document
from tests.http_service import HttpService, Reply
from tests.installation import Installation, web
from tests.integration.test_limited_services import configure
from tests.integration.test_stuck import memory_full, refuses
from tests.integration.test_uneven_workers import another_reports
from tests.support import wait_until
from worker.cli.store_access import describe_caller
from worker.processes.embedded_broker import EmbeddedBroker

__all__ = ["small_disk"]

SCRIPT = """
- when: Build
  attempts:
    - - write: {path: output/add.py, content: "def add(a, b:"}
      - say: Done.
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
TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
TABLE = TEXT[TEXT.index("### Troubles and where they show") : TEXT.index("## Pause and drain")]
#: A row of the table in docs/operations.md -> what its command says, and what its page does (patterns).
SHOWN = {
    "A phase waits for a person": (r"turn-\w+ .*build", r"suspended Build add\.py"),
    "The store's disk is full": (
        r"MISCONF(?s:.*)make room on the store's disk",
        "MISCONF.*make room on the store's disk",
    ),
    "The store's memory is full": ("OOM(?s:.*)raise maxmemory", "OOM.*raise maxmemory"),
    "A worker is dead": (r"worker-\S+ +gone", r"worker-\S+ .*silent for"),
    "A model is paused": ("model scripted .*maintenance", "model scripted.*maintenance"),
    "A model's service fails": ("breaker scripted .*503", "breaker scripted.*errors in a row.*503"),
    "A model's service has no credit": (
        r"limit 127\.0\.0\.1\S* .*credit balance",
        "limit 127.0.0.1.*credit balance is too low",
    ),
    "The intake is paused": ("intake .*maintenance", "intake.*maintenance"),
    "A day's budget is spent": (r"all +0\.9000 +0\.50 +180% +spent", r"all ?0\.9000 ?0\.50 ?180% ?spent"),
}


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A trouble that was staged.

    Attributes:
        turn_id: a turn that waits for that reason; one that ended where none does; "" where no turn has it.
        code: of the reason. check: what doctor and /readyz call it where an alert stands for it.
        alert: Prometheus' alert about it; "" for what nobody has to be called for.
        row: its row in docs/operations.md.
    """

    turn_id: str = ""
    code: str = ""
    check: str = ""
    alert: str = ""
    row: str = ""


#: Troubles that keep no stored turn back, with their words.
NEW_ONES = {
    "budget": "a day's budget is spent: all",
    "intake": f"the intake is paused by {describe_caller()} until",
    "settings budgets": "HELIX_BUDGETS='model:nosuch' matches nobody: HELIX_MODELS has scripted",
    "builds": "workers of 2 builds are at work: 0.0.9, such as",
    "disk": "%) free at",
}
#: Those about which the overview says that something is wrong, not that turns are stuck.
WRONG = {"settings budgets", "disk"}
_RULES = yaml.safe_load((Path(__file__).parents[2] / "compose/prometheus/alerts.yml").read_text())["groups"]
ALERTS = {rule["alert"] for group in _RULES for rule in group["rules"]}
Staged = Callable[[Installation, Path, contextlib.ExitStack], Awaitable[Trouble]]
TROUBLES: dict[str, Staged] = {}


def staged(name: str) -> Callable[[Staged], Staged]:
    def note(made: Staged) -> Staged:
        TROUBLES[name] = made
        return made

    return note


@staged("an open breaker")
async def _breaker(installation: Installation, *_: object) -> Trouble:
    away: dict[str, Any] = {"breaker_errors": 2, "breaker_seconds": 900.0, "transient_retries": 9}
    installation.play(SCRIPT, transient_delay_seconds=0.05, **away)
    installation.worker()
    await installation.ask("away", "a")

    async def is_open() -> bool:
        return any(each.what == BREAKER for each in await installation.client.pauses.list_active())

    await wait_until(is_open)
    turn_id, row = await installation.ask(session="b"), "A model's service fails"
    return Trouble(turn_id=turn_id, code="breaker", alert="HelixBreakerOpen", row=row)


@staged("a paused model")
async def _paused(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT)
    installation.worker()
    assert installation.command("pause", "start", "model", "scripted", "--reason", "maintenance").returncode == 0
    return Trouble(turn_id=await installation.ask(), code="pause", row="A model is paused")


@staged("a session's first turn at work")
async def _session(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT, run_slots=4)
    installation.worker()
    await installation.until(await installation.ask("slow"), "running")
    return Trouble(turn_id=await installation.ask(), code="session")


@staged("back-off after 429")
async def _delay(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT)
    installation.worker()
    return Trouble(turn_id=await installation.ask("limited"), code="delay")


@staged("a spent budget")
async def _budget(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT, budgets={"all": 0.5})
    installation.worker()
    ended = await installation.answer()
    return Trouble(turn_id=ended.turn_id, code="budget", alert="HelixBudgetSpent", row="A day's budget is spent")


@staged("a paused intake")
async def _intake(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT)
    installation.worker()
    turn_id = (await installation.answer()).turn_id
    assert installation.command("pause", "start", "intake", "--for", "2h", "--reason", "maintenance").returncode == 0
    return Trouble(turn_id=turn_id, code="intake", row="The intake is paused")


@staged("a budget that matches nobody")
async def _nobodys(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT)
    installation.worker()
    turn_id = (await installation.answer()).turn_id
    installation.change(budgets={"model:nosuch": 1.0})
    return Trouble(turn_id=turn_id, code="settings budgets", alert="HelixSetUpWrong")


@staged("a worker of another version")
async def _builds(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT)
    installation.worker()
    turn_id = (await installation.answer()).turn_id
    another_reports(installation.settings, version="0.0.9", at=time.time() + 3600)
    return Trouble(turn_id=turn_id, code="builds", alert="HelixSetUpWrong")


@staged("a disk that fills up")
async def _filling(installation: Installation, folder: Path, until_judged: contextlib.ExitStack) -> Trouble:
    installation.play(SCRIPT)
    installation.worker()
    turn_id = (await installation.answer()).turn_id
    installation.change(root=until_judged.enter_context(mounted(folder / "root", 8)))
    return Trouble(turn_id=turn_id, code="disk", alert="HelixDiskFilling")


@staged("a service without credit")
async def _credit(installation: Installation, _: Path, until_judged: contextlib.ExitStack) -> Trouble:
    said = (
        b'{"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low."}}'
    )
    service = until_judged.enter_context(HttpService(lambda _: Reply(400, said)))
    installation.play(SCRIPT)
    configure(installation, {"scripted": service.url})
    installation.worker()
    first = await installation.client.reader.await_result(await installation.ask(session="a"), timeout=60)
    assert first.error
    assert (first.error.code, first.attempt) == ("no_credit", 1)
    assert "{" not in first.error.message
    turn_id, row = await installation.ask(session="b"), "A model's service has no credit"
    return Trouble(turn_id=turn_id, code="credit", alert="HelixNoCredit", row=row)


@staged("no worker")
async def _nobody(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT)
    turn_id = await installation.ask()
    return Trouble(turn_id=turn_id, code="no_worker", check="workers helix.run", alert="HelixNoWorker")


@staged("no worker for the model")
async def _unfit(installation: Installation, *_: object) -> Trouble:
    used = installation.play(SCRIPT)
    installation.worker(models={"another": used.models["scripted"], "scripted": "scripted:gone.yaml"})
    return Trouble(turn_id=await installation.ask(), code="unfit", alert="HelixNoWorkerCan")


@staged("a sick host")
async def _sick(installation: Installation, *_: object) -> Trouble:
    sessions = installation.play(SCRIPT).sessions_dir
    installation.worker()
    sessions.rename(sessions.with_name("sessions-away"))
    sessions.write_text("no folder")

    async def is_sick() -> bool:
        return any(each.sick for each in await installation.client.workers.read_reports())

    await wait_until(is_sick)
    return Trouble(turn_id=await installation.ask(), code="sick", alert="HelixHostSick")


@staged("a full disk of the store")
async def _disk(installation: Installation, disk: Path, until_judged: contextlib.ExitStack) -> Trouble:
    broker = until_judged.enter_context(EmbeddedBroker(disk / "b"))
    installation.play(SCRIPT, broker_url=broker.url, store_url=broker.url)
    turn_id = await installation.ask()
    fill(disk / "filler")
    until_judged.callback((disk / "filler").unlink)
    await wait_until(lambda: refuses(broker))
    return Trouble(turn_id=turn_id, code="store", row="The store's disk is full")


@staged("no free slot")
async def _slot(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT, run_slots=1)
    installation.worker()
    await installation.until(await installation.ask("slow", "a"), "running")
    return Trouble(turn_id=await installation.ask(session="b"), code="slot", alert="HelixTurnsWait")


@staged("a full memory of the store")
async def _memory(installation: Installation, folder: Path, until_judged: contextlib.ExitStack) -> Trouble:
    broker = until_judged.enter_context(EmbeddedBroker(folder / "b"))
    installation.change(broker_url=broker.url, store_url=broker.url)
    memory_full(broker)
    return Trouble(row="The store's memory is full")


@staged("a suspended phase")
async def _suspended(installation: Installation, *_: object) -> Trouble:
    installation.play(SCRIPT)
    (installation.settings.root / "work").mkdir()
    installation.worker()
    phase = Phase(id="build", description="Build add.py.", output_files=("add.py",), max_attempts=1)
    [turn_id] = await installation.client.phases.submit_phases([phase], directory="work")
    await installation.until(turn_id, "suspended")
    return Trouble(row="A phase waits for a person")


@staged("a dead worker")
async def _dead(installation: Installation, *_: object) -> Trouble:
    async def states() -> set[str]:
        return {line.state for line in (await installation.client.workers.read_state()).workers}

    async def gone() -> bool:
        return "gone" in await states()

    worker = installation.worker()
    await wait_until(states)  # one that has not reported yet is missed by nobody
    installation.bury(worker, 15)
    await wait_until(gone, 120)
    return Trouble(row="A worker is dead")


#: Metrics that have a trouble by name, or the reason why turns wait.
_TOLD = re.compile(r'helix_(?:troubles|waits)\{\w+="(.*)"')


def plain(text: str) -> str:
    """A text as it is compared: one line, each figure alike."""
    return re.sub(r"\d+(\.\d+)?", "#", " ".join(html.unescape(text).split()))


def said(installation: Installation, *words: str) -> str:
    done = installation.command(*words)
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


async def pages(settings: Settings, turn_id: str) -> dict[str, Any]:
    """What an operator's browser and programs are shown."""
    async with web(settings, authorization=f"Bearer {make_token(settings.token_path)}") as http:
        paths = {"overview": "/overview", "list's page": "/turns", "turn's page": f"/turns/{turn_id}"}
        shown = {name: plain(Document((await http.get(path)).text).text) for name, path in paths.items()}
        api = (await http.get(f"/v1/turns/{turn_id}")).json()["waits"]
        told = [line.rpartition(" ") for line in (await http.get("/metrics")).text.splitlines() if line[0] != "#"]
        counted = {found[1] for name, _, value in told if float(value) and (found := _TOLD.match(name))}
        return {**shown, "api": api, "readyz": (await http.get("/readyz")).json(), "metrics": counted}


def rows() -> dict[str, tuple[str, str]]:
    """Row of docs/operations.md -> command, page."""
    found = [line.split("|")[1:-1] for line in TABLE.splitlines() if line.startswith("| ") and "`" in line]
    return {trouble.strip(): (command.strip(" `"), page.strip(" `")) for trouble, command, page in found}


async def shown_as_documented(row: str, installation: Installation) -> None:
    """Both cells of the row show the trouble."""
    (command, page), (by_command, by_page) = rows()[row], SHOWN[row]
    assert re.search(by_command, said(installation, *command.split()[1:])), command
    async with web(installation.settings) as http:
        shown = html.unescape(Document((await http.get(page)).text).text)
    assert re.search(by_page, shown), f"{page}\n{shown}"


def test_every_row_of_the_document_is_shown_here() -> None:
    assert set(rows()) == set(SHOWN)


@pytest.mark.parametrize("name", TROUBLES)
async def test_every_place_gives_the_same_reason(
    name: str, installation: Installation, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    disk = request.getfixturevalue("small_disk") if name == "a full disk of the store" else tmp_path
    installation.change(locale="en")
    with contextlib.ExitStack() as until_judged:
        trouble = await TROUBLES[name](installation, disk, until_judged)
        turn_id, code, client = trouble.turn_id, trouble.code, installation.client
        if turn_id and code not in NEW_ONES:

            async def waits() -> bool:
                found = await client.workers.explain_waits([await client.reader.read_turn(turn_id)])
                return bool(found) and found[turn_id].reason == code

            await wait_until(waits)
        if trouble.row:
            await shown_as_documented(trouble.row, installation)
        if turn_id:
            await compared(trouble, installation)
        if "The store's" not in trouble.row:
            for each in (await client.lists.read_page(Search())).turns:
                with contextlib.suppress(Exception):
                    await client.canceller.cancel(each.turn_id)


async def compared(trouble: Trouble, installation: Installation) -> None:
    """Ask every place, and compare."""
    turn_id, code = trouble.turn_id, trouble.code
    wait = json.loads(said(installation, "turn", "show", turn_id, "--json"))["waits"]
    listed = {
        each["turn_id"]: each["waits"] for each in json.loads(said(installation, "turn", "list", "--json"))["turns"]
    }
    doctor = json.loads(said(installation, "doctor", "--json"))["findings"]
    seen = await pages(installation.settings, turn_id)
    seen |= {"top": plain(said(installation, "stats", "top", "--once"))}
    if code in NEW_ONES:
        assert (wait, listed[turn_id], seen["api"]) == (None, None, None)
        words = shown = NEW_ONES[code]
    else:
        assert (wait["reason"], listed[turn_id]["reason"], seen["api"]["reason"]) == (code, code, code)
        words, shown = wait["words"], wait["words"].partition(": ")[0]
        assert plain(listed[turn_id]["words"]) == plain(seen["api"]["words"]) == plain(words)
        assert plain(shown) in plain(said(installation, "turn", "show", turn_id))
        assert plain(shown) in plain(said(installation, "turn", "list"))
        assert plain(shown) in seen["list's page"]
        assert plain(words) in seen["turn's page"]
        assert ("slots are busy" in seen["turn's page"]) == (code == "slot"), "that says it of others"
    # Of a session's turns the installation says that they wait for each other, not for which.
    of_all = shown if code == "session" else words
    assert plain(of_all) in seen["overview"]
    assert plain(of_all)[:80] in seen["top"]
    if code == "store":
        [finding] = [each for each in doctor if each["state"] == "wrong"]
        assert finding["check"] == "store", "what follows from a cause is not said"
        assert "MISCONF" in finding["message"]
        assert "MISCONF" in words
        assert seen["readyz"]["code"] == "MISCONF"
        assert seen["readyz"]["fix"].startswith("make room on the store's disk")
    else:
        found = [each for each in doctor if each["check"] in {code, f"waits {code}", trouble.check}]
        assert found, [each["check"] for each in doctor]
        assert any(plain(of_all) in plain(each["message"]) for each in found), found
    assert {code, trouble.check} & set(seen["readyz"]["why"]), seen["readyz"]
    assert {code, trouble.check} & seen["metrics"], seen["metrics"]
    assert not trouble.alert or trouble.alert in ALERTS
    listed_alerts = {each["check"] for each in json.loads(said(installation, "worker", "list", "--json"))["alerts"]}
    assert {code, trouble.check} & listed_alerts or code in {"session", "delay", "slot"}, listed_alerts
    calm = {"session", "delay", "slot", "pause", *NEW_ONES}
    assert ("nothing is stuck" in seen["overview"]) == (code in calm - WRONG)
    assert ("Something is stuck" in seen["overview"]) == (code not in calm)
    assert ("Something is wrong" in seen["overview"]) == (code in WRONG)
