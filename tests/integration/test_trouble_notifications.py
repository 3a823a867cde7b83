"""Each trouble of an installation calls somebody: real workers, a real relay and receiver, and the trouble itself."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.notifications.notification_keys import NotificationKeys
from tests.hooks import HookReceiver
from tests.installation import Installation, asked
from tests.support import wait_for, wait_until

SCRIPT = """
- when: away
  attempts:
    - - error: {kind: transient, message: "HTTP 503: upstream is out"}
- when: poison
  attempts:
    - - kill_parent
- attempts:
    - - usage: {input_tokens: 10, output_tokens: 5, cost_usd: 0.9}
      - say: "Fine.\\n\\n<!-- STEP: what -->"
"""


@pytest.fixture
def receiver() -> Iterator[HookReceiver]:
    with HookReceiver() as receiver:
        yield receiver


@pytest.fixture
def called(installation: Installation, receiver: HookReceiver) -> Installation:
    installation.play(
        SCRIPT,
        webhook_urls=(receiver.url,),
        webhook_internal="allowed",
        public_url="https://turns.example",
        breaker_errors=3,
        transient_retries=100,
        transient_delay_seconds=0.05,
        locale="en",
    )
    return installation


def told(receiver: HookReceiver, kind: str) -> dict[str, Any]:
    """What the only notification of this kind says; empty while there is none."""
    bodies = [json.loads(body) for _, body in list(receiver.taken)]
    found = [body["data"] for body in bodies if body["type"] == kind]
    assert len(found) <= 1, "it is said once"
    return found[0] if found else {}


async def ask(client: TurnsClient, text: str) -> str:
    return await client.submitter.submit(asked(text, f"s-{text}"))


async def test_an_open_breaker_calls_once_however_often_its_probes_fail(
    called: Installation,
    receiver: HookReceiver,
) -> None:
    used = called.change(breaker_seconds=1.0)
    called.worker()
    called.relay()
    client = called.client
    turn_id = await ask(client, "away")
    data = await wait_until(lambda: told(receiver, "breaker.opened"))
    assert (data["model"], data["url"]) == ("scripted", "https://turns.example/paused")
    [breaker] = await client.pauses.list_active()
    again = NotificationKeys(used.namespace).watched("pauses")
    with redis.Redis.from_url(used.redis_url) as store:  # probes fail, and a relay looks again
        await wait_until(lambda: store.exists(again) and _breaker(store, used)["errors"] > breaker.errors)
    assert told(receiver, "breaker.opened") == data
    await client.canceller.cancel(turn_id)


def _breaker(store: redis.Redis, settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.hget(Keys(settings.namespace).pauses, "breaker|scripted") or "{}")  # type: ignore[arg-type]
    return found or {"errors": 0}


async def test_a_budget_calls_when_it_is_near_and_again_when_it_is_spent(
    called: Installation,
    receiver: HookReceiver,
) -> None:
    called.change(budgets={"all": 1.0})
    called.worker()
    called.relay()
    client = called.client
    assert (await client.reader.await_result(await ask(client, "one"), timeout=60)).outcome == "passed"
    near = await wait_until(lambda: told(receiver, "budget.near"))
    assert (near["scope"], near["spent_usd"], near["limit_usd"]) == ("all", 0.9, 1.0)
    assert not told(receiver, "budget.spent")
    assert (await client.reader.await_result(await ask(client, "two"), timeout=60)).outcome == "passed"
    spent = await wait_until(lambda: told(receiver, "budget.spent"))
    assert (spent["scope"], spent["spent_usd"]) == ("all", 1.8)


async def test_turns_that_could_run_and_do_not_call(
    called: Installation,
    receiver: HookReceiver,
) -> None:
    called.worker("--foreground")
    called.relay()
    client = called.client
    [worker] = await wait_until(client.workers.read_reports)
    assert called.run("worker", "quiet", worker.name).returncode == 0

    async def obeys() -> bool:
        return any(each.quiet for each in await client.workers.read_reports())

    await wait_until(obeys)
    turn_id = await ask(client, "one")
    with redis.Redis.from_url(called.settings.redis_url) as store:  # for ten minutes
        keys = called.keys
        store.hincrby(keys.turn(turn_id), "created_at", -600_000)
        store.hset(keys.turn(turn_id), mapping={"announced": 0, "announced_at": 1})
    data = await wait_until(lambda: told(receiver, "queue.stuck"))
    assert (data["turn_id"], data["turns"], data["cause"]) == (turn_id, 1, "quiet")
    assert "told to take no new turns" in data["message"]


def test_a_killed_worker_that_nobody_replaces_calls(called: Installation, receiver: HookReceiver) -> None:
    killed = called.worker()
    with redis.Redis.from_url(called.settings.redis_url) as store:
        names = wait_for(lambda: store.hkeys(called.keys.workers))
    # A younger worker on the same host would be taken for its replacement: this one is from another.
    called.bury(killed, 30, host="elsewhere")
    called.worker()
    data = wait_for(lambda: told(receiver, "worker.gone"), 180)
    assert data["host"] == "elsewhere"
    assert data["worker"].encode() in names


async def test_a_turn_that_takes_down_its_workers_calls_as_a_dead_letter(
    called: Installation, receiver: HookReceiver
) -> None:
    used = called.change(strikes=2)
    called.worker()
    with redis.Redis.from_url(used.redis_url) as store:  # notifications are of what happens from the first look on
        looked = Keys(used.namespace)
        await wait_until(lambda: store.exists(NotificationKeys(looked.namespace).searched_until(looked.suspended)))
    client = called.client
    turn_id = await ask(client, "poison")
    data = await wait_until(lambda: told(receiver, "turn.dead"), 180)
    assert (data["turn_id"], data["outcome"]) == (turn_id, "dead")
    assert data["url"] == f"https://turns.example/turns/{turn_id}"
