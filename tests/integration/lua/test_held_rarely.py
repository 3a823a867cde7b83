"""Pauses and breakers where they meet what is rare: lost probes, seals, deadlines, a breaker behind a pause."""

import json
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.pauses.pause import Pause
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.claim import ClaimRefusal
from tests import records
from tests.integration.lua.by_hand import FIRST, PASSED, claimed, request
from tests.integration.lua.test_held_turns import FAILED, MODEL, failed, opened, reaped, settings, time_passes
from tests.on_loop import Ledger
from tests.support import wait_until

__all__ = ["settings"]


def stored_breaker(client: TurnsClient, store: redis.Redis, **changes: int) -> dict[str, Any]:
    """The model's breaker as it is stored, after these changes."""
    name = Keys(client.settings.namespace).pauses
    told: dict[str, Any] = json.loads(store.hget(name, "breaker|scripted") or b"")  # type: ignore[arg-type]
    store.hset(name, "breaker|scripted", json.dumps(told | changes))
    return told | changes


async def test_a_probe_that_nobody_hears_of_again_gives_its_place_away_after_ten_minutes(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, b = await opened(client, ledger)
    time_passes(store, ledger.settings)
    claimed(ledger, a, session_id="a")
    assert ledger.claim_turn(b, "b", FIRST) == ClaimRefusal("held_back")
    assert stored_breaker(client, store)["probe_ms"] / 1000 - ledger.server_time() == pytest.approx(600, abs=60)
    stored_breaker(client, store, probe_ms=1)
    claimed(ledger, b, session_id="b")


async def test_a_probe_that_is_cancelled_before_it_runs_leaves_its_place_to_another_turn(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    await opened(client, ledger)
    a, b = [await client.submitter.submit(request(session_id=session)) for session in ("c", "d")]
    time_passes(store, ledger.settings)
    assert reaped(ledger, a) == "announce"
    assert reaped(ledger, b) == "held_back"
    await client.canceller.cancel(a)
    assert b in ledger.list_due(), "it is looked at at once"
    claimed(ledger, b, session_id="d")


async def test_a_breaker_stays_open_for_ten_minutes_at_most(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, _ = await opened(client, ledger)
    stored_breaker(client, store, for_ms=500_000)
    time_passes(store, ledger.settings)
    ledger.commit_transition(claimed(ledger, a, session_id="a"), FAILED)
    [again] = await client.pauses.list_active()
    assert 500 < again.until - ledger.server_time() <= 601


async def test_the_deadline_goes_on_when_a_breaker_keeps_what_a_pause_kept(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    await opened(client, ledger)
    await client.pauses.set_pause(Pause(what="queue", name="run"))
    turn_id = await client.submitter.submit(request(deadline_seconds=1000.0))
    first = (await client.reader.read_turn(turn_id)).deadline_at
    until = ledger.server_time() + 0.2
    await wait_until(lambda: ledger.server_time() > until)
    await client.pauses.end_pause("queue", "run", by="ops")
    assert reaped(ledger, turn_id) == "held_back"
    second = (await client.reader.read_turn(turn_id)).deadline_at
    assert second >= first + 0.2
    time_passes(store, ledger.settings)
    assert reaped(ledger, turn_id) == "announce"
    assert (await client.reader.read_turn(turn_id)).deadline_at == second, "nobody chose that the breaker opens"


async def test_a_turn_behind_an_open_breaker_is_looked_at_at_its_deadline(
    settings: Settings, client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    await opened(client, ledger)
    async with TurnsClient(replace(settings, announce_seconds=60.0)) as patient:
        stored_breaker(client, store, until_ms=int((ledger.server_time() + 3600) * 1000))
        turn_id = await patient.submitter.submit(request(deadline_seconds=500.0))
    due = store.zscore(Keys(settings.namespace).due, turn_id)
    assert due == round((await client.reader.read_turn(turn_id)).deadline_at * 1000)


async def test_a_resumed_turn_is_announced_as_if_for_the_first_time(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request())
    for _ in range(4):
        ledger.recall_turns()
        assert reaped(ledger, turn_id) == "announce"
    name = Keys(client.settings.namespace).turn(turn_id)
    assert store.hget(name, "announced") == b"5"
    await client.pauses.set_pause(MODEL)
    assert ledger.claim_turn(turn_id, "s-1", FIRST) == ClaimRefusal("held_back")
    await client.pauses.end_pause("model", "scripted", by="ops")
    assert reaped(ledger, turn_id) == "announce"
    assert store.hget(name, "announced") == b"2", "the pauses between announcements begin anew"


async def test_an_answer_that_is_sealed_is_told_though_its_model_was_paused_meanwhile(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    ledger.seal_answer(claim, AcceptedAnswer(transition=PASSED, delivery="d").to_json(claim.known_facts(1)))
    await client.pauses.set_pause(MODEL)
    await client.pauses.set_pause(Pause(what="queue", name="check"))
    keys = Keys(client.settings.namespace)
    store.hset(keys.turn(turn_id), "lease_until", 1)  # its worker is not heard of any more
    store.zadd(keys.due, {turn_id: 1})
    assert reaped(ledger, turn_id) == "announce"


async def test_an_answer_is_heard_of_when_it_is_sealed_and_errors_after_that_count(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    def errors() -> bytes | None:
        return store.hget(Keys(client.settings.namespace).pauses, "errors|scripted")  # type: ignore[return-value]

    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    await failed(client, ledger, "a")
    assert errors() == b"1"
    accepted = AcceptedAnswer(transition=PASSED, delivery="d").to_json(claim.known_facts(1))
    ledger.seal_answer(claim, accepted, "", "answered")
    assert errors() is None
    await failed(client, ledger, "b")
    ledger.commit_transition(claim, replace(PASSED, run_ended=True, validated=True, service="answered"))
    assert errors() == b"1", "the error came after the answer"


async def test_the_time_of_a_turn_that_is_cancelled_in_a_pause_does_not_count_the_pause(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    await client.pauses.set_pause(MODEL)
    turn_id = await client.submitter.submit(request())
    until = ledger.server_time() + 1.0
    await wait_until(lambda: ledger.server_time() > until)
    turn = await client.canceller.cancel(turn_id)
    counted = records.counters(store, Keys(client.settings.namespace))["time.turn.ms"] / 1000
    assert turn.finished_at - turn.created_at - counted >= 0.9
