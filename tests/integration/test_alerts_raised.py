"""The alerts in a real Prometheus over a real installation: silent while it is well and busy, each by its own trouble.

``make alerts``. Durations of the rules are divided by ALERTS_FASTER (20): then three minutes are an hour. With 1 they
are as they are, which takes an hour and more. That an alert comes within two minutes of what it measures is shown in
``test_alert_rules.py``, where the clock is that of the test.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api_client.contract.errors import StoreUnavailable
from api_client.contract.escalation import Escalation
from api_client.contract.keys import GC_AT, Keys
from api_client.contract.notification import Notification
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.pauses.pause import Pause
from tests.fault.staged.disk_full import small_disk
from tests.installation import Installation, RelayProcess, WorkerProcess
from tests.on_loop import outbox_of
from tests.prometheus import PROMETHEUS, Prometheus
from tests.support import passes, wait_until
from tests.unit.test_dashboards import PANELS, RULES

FASTER = float(os.environ.get("ALERTS_FASTER", "20"))
#: How long the healthy stretch is, in seconds of Prometheus' faster clock.
HEALTHY_SECONDS = 3600.0
pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (make alerts)"),
    pytest.mark.timeout(900 + HEALTHY_SECONDS / FASTER),
]
SCRIPT = """
- when: wrong
  attempts:
    - - error: {kind: permanent, message: "no"}
- when: again
  attempts:
    - - say: "No marker."
    - - say: "Fine.\\n\\n<!-- STEP: what -->"
- when: person
  attempts:
    - - say: "No marker."
- when: away
  attempts:
    - - error: {kind: transient, message: "HTTP 503: upstream is out"}
- when: poison
  attempts:
    - - kill_parent
- when: dear
  attempts:
    - - usage: {input_tokens: 10, output_tokens: 5, cost_usd: 0.85}
      - say: "Fine.\\n\\n<!-- STEP: what -->"
- attempts:
    - - usage: {input_tokens: 10, output_tokens: 5, cost_usd: 0.001}
      - say: {text: "Fine.\\n\\n<!-- STEP: what -->", seconds: 0.3}
"""


@dataclass
class Site:
    """A real installation: its settings, its relay, its worker if it has one, and a client."""

    installation: Installation
    relay: RelayProcess
    worker: WorkerProcess | None
    asked: int = 0

    def __post_init__(self) -> None:
        self.settings, self.client, self.store = (
            self.installation.settings, self.installation.client, self.installation.store
        )  # fmt: skip

    async def ask(self, text: str, count: int = 1, **more: Any) -> list[str]:
        """Submit so many turns, each in a session of its own."""
        found = []
        for _ in range(count):
            self.asked += 1
            found.append(await self.installation.ask(text, f"s{self.asked}", **more))
        return found

    async def answer(self, text: str, count: int = 1) -> None:
        """Have so many turns carried out."""
        for turn_id in await self.ask(text, count):
            await self.client.reader.await_result(turn_id, timeout=120)

    async def suspend(self) -> str:
        """A turn that waits for a person."""
        policy = {"step_marker": ("escalate",)}
        [turn_id] = await self.ask("person", max_attempts=1, policy=policy, attached=Escalation().attached)
        await self.installation.until(turn_id, "suspended")
        return turn_id

    def report(self, **more: Any) -> None:
        """Two workers, one for each kind of work, that go on reporting this for an hour."""
        for queue in (RUN_QUEUE, CHECK_QUEUE):
            told = {"at": time.time() + 3600, "host": "h", "pid": 1, "queues": [queue], "slots": 4, "free": 3}
            told |= {"stalled": False, "check_free": 2, "sick": "", "took_at": 0}
            self.store.hset(Keys(self.settings.namespace).workers, queue, json.dumps(told | more))


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What somebody must be called for.

    Attributes:
        make: makes it. changes: to the settings.
        worker: whether a real worker runs; else two are reported.
        before: what is asked before Prometheus looks for the first time.
        with_it: alerts that this trouble may raise besides.
    """

    make: Callable[[Site], Awaitable[None]]
    changes: dict[str, Any] = field(default_factory=dict)
    worker: bool = True
    before: tuple[str, ...] = ()
    with_it: frozenset[str] = frozenset()


async def rejects(site: Site) -> None:
    await site.answer("again", 30)


async def fails(site: Site) -> None:
    await site.answer("wrong", 30)


async def is_stuck(site: Site) -> None:
    """Announced, due soon, and nobody takes it: for ten minutes."""
    [turn_id] = await site.ask("one")
    keys = Keys(site.settings.namespace)
    site.store.hset(keys.turn(turn_id), mapping={"announced": 0, "announced_at": int((time.time() - 600) * 1000)})
    site.store.hincrby(keys.turn(turn_id), "created_at", -600_000)
    site.store.zadd(keys.due, {turn_id: int((time.time() + 3600) * 1000)})


async def waits(site: Site) -> None:
    """Every slot is at work, and a turn has waited for two minutes."""
    site.report(free=0)
    [turn_id] = await site.ask("one")
    keys = Keys(site.settings.namespace)
    site.store.hset(keys.turn(turn_id), mapping={"announced": 0, "announced_at": int((time.time() - 120) * 1000)})
    site.store.hincrby(keys.turn(turn_id), "created_at", -120_000)
    site.store.zadd(keys.due, {turn_id: int((time.time() + 3600) * 1000)})


async def no_worker_can(site: Site) -> None:
    site.report(models=["another"])
    await site.ask("one")


async def needs_a_person(site: Site) -> None:
    """For more than a quarter of an hour."""
    site.store.hincrby(Keys(site.settings.namespace).turn(await site.suspend()), "suspended_at", -1_000_000)


async def has_no_credit(site: Site) -> None:
    limit = {"until_ms": 0, "for_ms": 60_000, "heard_ms": 0, "since": 0, "errors": 1, "slot_ms": 0, "spent": True}
    site.store.hset(Keys(site.settings.namespace).pauses, "limit|svc", json.dumps(limit | {"reason": "no credit"}))


async def kills_the_worker(site: Site) -> None:
    assert site.worker
    site.worker.kill()


async def is_older(site: Site) -> None:
    site.report(version="new")
    told = {"at": time.time() + 3600, "host": "h", "pid": 2, "queues": [RUN_QUEUE], "slots": 1, "free": 1}
    site.store.hset(Keys(site.settings.namespace).workers, "older", json.dumps(told | {"version": "old"}))


async def is_stalled(site: Site) -> None:
    site.report(stalled=True)


async def is_sick(site: Site) -> None:
    site.report(sick="no room")


async def is_slow(site: Site) -> None:
    site.report(lease_round=3.0)


async def fills_the_store(site: Site) -> None:
    used = site.store.info("memory")["used_memory"]  # type: ignore[index]
    site.store.config_set("maxmemory", int(used * 1.1))


async def fills_the_disk(site: Site) -> None:
    with suppress(OSError), (site.settings.root / "filler").open("wb") as file:
        while True:
            file.write(b"x" * 100_000)
            file.flush()


async def forgets_gc(site: Site) -> None:
    site.store.hset(Keys(site.settings.namespace).installation, GC_AT, str(time.time() - 9 * 86_400))


async def refuses(site: Site) -> None:
    """Callers get a 503, again and again."""
    await site.client.pauses.set_pause(Pause(what="intake", reason="test", by="test"))
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    async with httpx2.AsyncClient(base_url=site.relay.url, timeout=60) as http:
        for _ in range(30):
            assert (await http.post("/v1/turns", json=body)).status_code == 503


async def spends(site: Site) -> None:
    await site.answer("dear")


async def spends_all(site: Site) -> None:
    """One after the other: while no price is known, the first turn sets aside all that is left."""
    await site.answer("dear")
    await site.answer("dear")


async def is_away(site: Site) -> None:
    await site.ask("away", 4)


async def dies(site: Site) -> None:
    await site.ask("poison", 3)


async def is_unheard(site: Site) -> None:
    outbox = outbox_of(site.settings)
    outbox.put(Notification(kind="turn.dead", subject="t", at=time.time()))
    [entry] = outbox.due(1)
    assert outbox.failed(replace(entry, put_at=entry.put_at - 86_400), [], "http://127.0.0.1: answers 500")


async def loses_the_relay(site: Site) -> None:
    site.relay.kill()


_AWAY = {"breaker_errors": 3, "transient_retries": 100, "transient_delay_seconds": 0.05}
_DEAD = frozenset({"HelixDeadLetters", "HelixWorkersDie", "HelixTurnsFailing", "HelixNoWorker"})
TROUBLES = {
    "HelixRetryRateHigh": Trouble(make=rejects, before=("again", "one")),
    "HelixTurnsFailing": Trouble(make=fails, before=("wrong", "one")),
    "HelixQueueStuck": Trouble(make=is_stuck, worker=False, with_it=frozenset({"HelixTurnsWait"})),
    "HelixTurnsWait": Trouble(make=waits, worker=False),
    "HelixNoWorkerCan": Trouble(make=no_worker_can, worker=False),
    "HelixPersonNeeded": Trouble(make=needs_a_person),
    "HelixNoWorker": Trouble(make=kills_the_worker),
    "HelixWorkerStalled": Trouble(make=is_stalled, worker=False),
    "HelixHostSick": Trouble(make=is_sick, worker=False),
    "HelixLeasesSlow": Trouble(make=is_slow, worker=False),
    "HelixStoreFilling": Trouble(make=fills_the_store, worker=False),
    "HelixDiskFilling": Trouble(make=fills_the_disk, worker=False),
    "HelixSetUpWrong": Trouble(make=is_older, worker=False),
    "HelixGcNotRun": Trouble(make=forgets_gc, worker=False),
    "HelixRelayErrors": Trouble(make=refuses, worker=False),
    "HelixBudgetNear": Trouble(make=spends, changes={"budgets": {"all": 1.0}}),
    "HelixBudgetSpent": Trouble(
        make=spends_all, changes={"budgets": {"all": 1.0}}, with_it=frozenset({"HelixBudgetNear"})
    ),
    "HelixBreakerOpen": Trouble(make=is_away, changes=_AWAY),
    "HelixNoCredit": Trouble(make=has_no_credit),
    "HelixNotificationsGivenUp": Trouble(make=is_unheard, worker=False),
    "HelixDeadLetters": Trouble(make=dies, changes={"strikes": 2, "lease_seconds": 2.0}, with_it=_DEAD),
    "HelixWorkersDie": Trouble(make=dies, changes={"strikes": 2, "lease_seconds": 2.0}, with_it=_DEAD),
    "HelixNotScraped": Trouble(make=loses_the_relay, worker=False),
}


@pytest.fixture
def small_root(settings: Settings) -> Iterator[None]:
    """HELIX_ROOT on a file system of 8 MB."""
    with small_disk(settings.root, 8):
        yield


async def watched(site: Site, trouble: Trouble, alert: str, folder: Path) -> str:
    """Make a trouble, see its alert raised and no other, and say how long it took."""
    for text in trouble.before:
        await site.answer(text)
    with Prometheus(folder, site.relay.url, times=FASTER) as prometheus:
        prometheus.await_scrapes()
        assert alert not in prometheus.firing()
        began = time.monotonic()
        await trouble.make(site)
        await wait_until(lambda: alert in prometheus.firing(), 600, tick=0.2)
        took = time.monotonic() - began
        assert prometheus.ever_fired() <= {alert} | trouble.with_it
    return f"{alert}: {took:.0f} s after its trouble began, at {FASTER:g} times the speed"


@pytest.mark.parametrize("alert", TROUBLES)
async def test_a_trouble_raises_its_own_alert(
    alert: str,
    private_settings: Settings,
    installation: Installation,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trouble = TROUBLES[alert]
    if alert == "HelixDiskFilling":
        request.getfixturevalue("small_root")
    installation.settings = private_settings
    installation.play(SCRIPT, locale="en", **trouble.changes)
    worker = installation.worker() if trouble.worker else None
    site = Site(installation, installation.relay(), worker)
    if worker is None:
        site.report()
    said = await watched(site, trouble, alert, tmp_path)
    with capsys.disabled():
        print(said)


#: Panels that have nothing to show when nothing is handed on, verified or judged by a policy file.
EMPTY_WHILE_WELL = {"Handed on, and decided by people", "Verified phases"}


def queries() -> dict[str, str]:
    """A query of each panel, as Grafana would ask it for all models."""
    known = {"$model": ".*", "${model}": ".*", "$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}
    found = {}
    for panel in PANELS:
        query = panel["targets"][0]["expr"]
        for name, value in known.items():
            query = query.replace(name, value)
        found[panel["title"]] = query
    return found


def true_of_this_machine(seen: Prometheus) -> set[str]:
    """The alert that a machine of many other tests may deserve: its workers were slow to renew their leases."""
    [worst] = seen.asked("max_over_time(helix_lease_round_seconds[1h])")
    slowest = float(worst["value"][1])
    print(f"leases were renewed within {slowest:.2f} s")
    return {"HelixLeasesSlow"} if slowest > 1 else set()


def test_every_alert_has_its_trouble() -> None:
    assert TROUBLES.keys() == {rule["alert"] for rule in RULES}


async def test_a_healthy_busy_hour_with_suspended_and_paused_turns_raises_nothing_and_feeds_the_dashboard(
    private_settings: Settings, installation: Installation, tmp_path: Path
) -> None:
    installation.settings = private_settings
    used = installation.play(SCRIPT, locale="en", budgets={"all": 100.0})
    used.models["paused"] = used.models["scripted"]
    worker, relay, client = installation.worker(), installation.relay(), installation.client
    site = Site(installation, relay, worker)
    await site.answer("hello")  # now a price is known, and no turn sets aside the whole budget
    with Prometheus(tmp_path, relay.url, times=FASTER) as seen:
        await site.suspend()
        await client.pauses.set_pause(Pause(what="model", name="paused", reason="maintenance", by="test"))
        await installation.ask("hello", "held", model="paused")
        seen.await_scrapes()
        ends = time.monotonic() + HEALTHY_SECONDS / FASTER

        async def chat(number: int) -> None:
            while time.monotonic() < ends:
                with suppress(StoreUnavailable):  # who chats asks again; a machine of many tests may be slow
                    await site.answer("again" if number == 0 else "hello")
                await passes(4 / FASTER, "as many turns in an hour at every speed")

        await asyncio.gather(*map(chat, range(6)))
        finished = seen.asked("sum(helix_turn_finished_total)")
        assert float(finished[0]["value"][1]) > 20, "it was not busy"
        print(f"{finished[0]['value'][1]} turns ended within an hour of Prometheus' clock")
        assert seen.ever_fired() <= true_of_this_machine(seen)
        assert {title for title, query in queries().items() if not seen.asked(query)} <= EMPTY_WHILE_WELL
