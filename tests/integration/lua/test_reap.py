"""What a reaper finds: turns nobody claimed, nobody holds any more, or that came to their end."""

from dataclasses import replace
from unittest.mock import AsyncMock

import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import DoubleText, Outcome, TurnState
from api_client.turns.record.backlog import _parse_turn_id
from api_client.turns.record.claim import ClaimRefusal, LeaseClaim
from api_client.turns.record.transition import Transition, progress
from tests.integration.lua.by_hand import FIRST, claimed, request
from tests.on_loop import Ledger, OnLoop
from tests.support import wait_until
from worker.turns.leases.reaper import Reaper


async def test_a_reaper_that_may_not_take_leaves_a_lapsed_lease_alone(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=False).what == "later")
    assert ledger.renew_lease(claim) == "", "a beat with the unchanged token resumes"


async def test_an_unclaimed_turn_is_announced_again_later_and_later(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    ledger = Ledger(replace(settings, announce_seconds=0.2), "w")
    turn_id = await client.submitter.submit(request())
    due = Keys(settings.namespace).due

    def now() -> int:
        seconds, micros = store.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def announced() -> list[int]:
        """Between which two times, in ms, it was announced again; empty when it was not."""
        times = [now()]
        return [*times, now()] if ledger.reap_turn(turn_id, may_take=True).what == "announce" else []

    for wait_ms in (400, 800, 1600):  # the first announcement is that of its submit
        before, after = await wait_until(announced)
        assert before <= (store.zscore(due, turn_id) or 0) - wait_ms <= after


async def test_a_cancelled_holder_that_died_is_ended_by_a_reaper(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    claimed(ledger, turn_id)
    await client.canceller.cancel(turn_id)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).what == "finished")
    assert (await client.reader.read_turn(turn_id)).outcome is Outcome.CANCELLED


async def test_a_turn_past_its_deadline_expires_wherever_it_waits(client: TurnsClient, ledger: Ledger) -> None:
    first = await client.submitter.submit(request("1"))
    second = await client.submitter.submit(request("2", deadline_seconds=0.3))
    await wait_until(lambda: second in ledger.list_due())
    assert ledger.reap_turn(second, may_take=True).outcome == "expired"
    assert (await client.reader.read_turn(first)).state is TurnState.QUEUED


async def test_a_turn_that_kills_its_workers_is_dead_after_its_last_strike(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    ledger = Ledger(replace(settings, strikes=2, lease_seconds=0.5), "w")
    turn_id = await client.submitter.submit(request(locale="en"))
    claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).what == "announce")
    assert ledger.claim_turn(turn_id, "s-1", FIRST) == ClaimRefusal("alone"), (
        "its last delivery is for a process of its own"
    )
    assert isinstance(ledger.claim_turn(turn_id, "s-1", FIRST, alone=True), LeaseClaim)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).outcome == "dead")
    assert "administrator" in (await client.reader.read_turn(turn_id)).error.message
    assert store.zscore(Keys(settings.namespace).dead, turn_id) is not None


async def test_a_turn_whose_attempts_used_up_its_budget_expires_before_the_next_run(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request(token_limit=1000))
    again = Transition(
        attempt=1, state=TurnState.QUEUED, next=ChainTask("turn.retry", 2), fields=progress(tokens_used=1000)
    )
    assert ledger.commit_transition(claimed(ledger, turn_id), again).outcome == "expired"
    turn = await client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.error.reason) == (Outcome.EXPIRED, "tokens")


async def test_a_lost_run_is_charged_what_was_set_aside_for_it(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request(token_limit=900))
    for charged in (300, 600):
        claimed(ledger, turn_id)
        await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).what == "announce")
        assert (await client.reader.read_turn(turn_id)).tokens_used == charged
    claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).outcome == "expired")


async def test_the_task_of_a_dead_worker_is_named_once_also_that_of_a_link_in_place(
    settings: Settings, client: TurnsClient
) -> None:
    ledger = Ledger(replace(settings, lease_seconds=0.3), "the worker")
    turn_id = await client.submitter.submit(request())
    assert ledger.lost_task(turn_id) == ("", "")
    claim = ledger.claim_turn(turn_id, "s-1", FIRST, task="first")
    assert isinstance(claim, LeaseClaim)
    assert ledger.lost_task(turn_id) == ("", ""), "its worker lives"
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).what == "announce")
    assert ledger.lost_task(turn_id) == ("first", "the worker")
    assert ledger.lost_task(turn_id) == ("", "")
    claim = ledger.claim_turn(turn_id, "s-1", FIRST, task="another")
    assert isinstance(claim, LeaseClaim)
    transition = Transition(attempt=1, next=ChainTask("turn.validate", 1), run_ended=True)
    assert isinstance(ledger.commit_transition(claim, transition, keep=True, task="next"), LeaseClaim)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).what == "announce")
    assert ledger.lost_task(turn_id) == ("next", "the worker")


async def test_an_interrupt_whose_client_died_is_carried_out_by_a_reaper(client: TurnsClient, ledger: Ledger) -> None:
    first = await client.submitter.submit(request("1"))
    # The client dies before it can cancel.
    client.submitter._list_unfinished = AsyncMock(return_value=[])  # type: ignore[method-assign]
    second = await client.submitter.submit(request("2", double_text=DoubleText.INTERRUPT))
    found = await wait_until(lambda: (found := ledger.reap_turn(second, may_take=True)).what == "interrupt" and found)
    assert found.head == first
    ledger.cancel_turn(found.head, found.session_id)
    assert (await client.reader.read_turn(first)).outcome is Outcome.CANCELLED


async def test_a_damaged_record_is_put_aside_and_holds_up_no_other_turn(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    damaged, sound = (
        await client.submitter.submit(request("1")),
        await client.submitter.submit(request("2", session_id="s-2")),
    )
    keys = Keys(settings.namespace)
    store.delete(keys.turn(damaged))
    store.set(keys.turn(damaged), "not a hash")
    store.zadd(keys.due, {damaged: 1, sound: 2})
    store.delete(f"{settings.namespace}:celery:helix.run")  # their messages are lost
    OnLoop(lambda: Reaper(settings, "w", lambda *_: None)).reap_turns()
    assert [_parse_turn_id(each) for each in store.lrange(f"{settings.namespace}:celery:helix.run", 0, -1)] == [sound]
    assert (store.zscore(keys.due, damaged) or 0) > store.time()[0] * 1000 + 30_000


async def test_after_the_clock_was_set_back_a_dead_holders_turn_is_taken_within_two_leases(
    settings: Settings, client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request())
    claimed(ledger, turn_id)
    keys = Keys(settings.namespace)
    in_an_hour = (store.time()[0] + 3600) * 1000  # what the record says once the clock has gone back by an hour
    store.hset(keys.turn(turn_id), "lease_until", in_an_hour)
    store.zadd(keys.due, {turn_id: in_an_hour})
    assert ledger.list_due() == []
    ledger.recall_turns()
    assert ledger.list_due() == [turn_id]
    assert ledger.reap_turn(turn_id, may_take=True).what == "held"
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).what == "announce")
