"""Since when reapers have looked without a pause lies in the store; without it nobody takes a lease."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import redis
from redis.exceptions import ReadOnlyError

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.store.connecting import open_store
from api_client.turns.record.grace_period import GracePeriod
from tests.integration.lua.by_hand import PASSED, claimed, request
from tests.on_loop import Ledger, OnLoop
from tests.support import wait_until
from worker.turns.leases.reaper import _REAP_AT_MOST, Reaper

LEASE_SECONDS = 0.5


@pytest.fixture
def short(settings: Settings) -> Settings:
    """A lease that soon runs out, and reapers that may pause for long beside it."""
    return replace(settings, lease_seconds=LEASE_SECONDS, reap_seconds=20.0)


def reaper(settings: Settings) -> OnLoop:
    return OnLoop(lambda: Reaper(settings, "w", lambda *_: None))


def lapsed(store: redis.Redis, settings: Settings, turn_id: str) -> bool:
    now = store.time()
    return int(store.hget(Keys(settings.namespace).turn(turn_id), "lease_until") or 0) < now[0] * 1000 + now[1] // 1000


async def test_after_an_outage_the_holder_of_a_finished_run_commits_before_a_reaper_takes_it(
    client: TurnsClient, short: Settings, store: redis.Redis
) -> None:
    ledger = Ledger(short, "holder")
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    # Nobody could beat, and nobody could look: the store was away, and the lease has run out meanwhile.
    await wait_until(lambda: lapsed(store, short, turn_id))
    reaper(short).reap_turns()
    assert ledger.commit_transition(claim, PASSED).outcome == "passed"
    assert (await client.reader.read_turn(turn_id)).outcome is Outcome.PASSED


async def test_a_reaper_that_has_just_begun_takes_at_once_what_others_could_have_taken(
    client: TurnsClient, short: Settings, store: redis.Redis
) -> None:
    ledger = Ledger(short, "holder")
    turn_id = await client.submitter.submit(request())
    claimed(ledger, turn_id)
    watch = OnLoop(lambda: GracePeriod(short, open_store(short), "w"))
    await wait_until(lambda: watch.register_look().watched_seconds >= LEASE_SECONDS and lapsed(store, short, turn_id))
    reaper(short).reap_turns()
    assert (await client.reader.read_turn(turn_id)).strikes == 1


async def test_a_pause_of_all_reapers_or_a_clock_set_back_begins_the_time_anew(
    short: Settings, store: redis.Redis
) -> None:
    key, watch = Keys(short.namespace).reapers, OnLoop(lambda: GracePeriod(short, open_store(short), "w"))
    assert watch.register_look().watched_seconds == 0.0, "a store that knows of no reaper"
    await wait_until(lambda: watch.register_look().watched_seconds > 0)
    pause = 1000 * 3 * short.reap_seconds
    store.hincrbyfloat(key, "seen", -pause - 5000)
    assert watch.register_look().watched_seconds == 0.0, "nobody looked for longer than a pause"
    await wait_until(lambda: watch.register_look().watched_seconds > 0)
    store.hincrby(key, "seen", 60_000)
    assert watch.register_look().watched_seconds == 0.0, "the clock was set back"
    assert store.pttl(key) > 0


async def test_one_reaper_looks_for_all_and_another_takes_over_within_a_pause(
    client: TurnsClient, settings: Settings, store: redis.Redis
) -> None:
    patient = replace(settings, reap_seconds=1.0)
    first, second = (OnLoop(lambda name=name: Reaper(patient, name, lambda *_: None)) for name in ("a", "b"))  # type: ignore[misc]
    await client.submitter.submit(request())
    key = Keys(settings.namespace).reapers

    def looks() -> object:
        return store.hget(key, "by")

    for reaper in (first, second, first, second):
        reaper.reap_turns()
        assert looks() == b"a"
    since = store.hget(key, "gapless_since")

    def taken_over() -> bool:
        second.reap_turns()
        return looks() == b"b"

    await wait_until(taken_over)
    assert store.hget(key, "gapless_since") == since, "that was no pause"
    first.reap_turns()
    assert looks() == b"b"


async def test_turns_are_looked_at_again_by_whoever_sees_that_the_clock_was_set_back(
    client: TurnsClient, short: Settings, store: redis.Redis
) -> None:
    keys = Keys(short.namespace)
    first, second = (OnLoop(lambda name=name: Reaper(short, name, lambda *_: None)) for name in ("a", "b"))  # type: ignore[misc]
    turn_id = await client.submitter.submit(request())
    first.reap_turns()
    second.reap_turns()
    in_an_hour = (store.time()[0] + 3600) * 1000
    store.zadd(keys.due, {turn_id: in_an_hour})
    store.hincrby(keys.reapers, "seen", 3_600_000)
    second.reap_turns()
    assert (store.zscore(keys.due, turn_id) or 0) < in_an_hour


async def test_a_reaper_whose_messages_do_not_go_out_lets_another_look(client: TurnsClient, settings: Settings) -> None:
    quick, sent = replace(settings, lease_seconds=LEASE_SECONDS, announce_seconds=0.2), list[object]()
    cut_off = OnLoop(lambda: Reaper(quick, "a", lambda *_: False))
    well = OnLoop(lambda: Reaper(quick, "b", lambda *words: sent.append(words)))
    claimed(Ledger(quick, "dead"), await client.submitter.submit(request()))

    def announced() -> bool:
        cut_off.reap_turns()
        well.reap_turns()
        return bool(sent)

    await wait_until(announced)


async def test_the_turns_of_many_dead_workers_are_announced_in_one_look(
    client: TurnsClient, short: Settings, store: redis.Redis
) -> None:
    sent, number = list[object](), 2 * _REAP_AT_MOST + 1
    for each in range(number):
        session = f"s-{each}"
        claimed(Ledger(short, "dead"), await client.submitter.submit(request(session_id=session)), session_id=session)
    watch, due = OnLoop(lambda: GracePeriod(short, open_store(short), "w")), Keys(short.namespace).due

    def all_lapsed() -> bool:
        now = store.time()
        return watch.register_look().watched_seconds >= LEASE_SECONDS and store.zcount(due, 0, now[0] * 1000) == number

    await wait_until(all_lapsed)
    OnLoop(lambda: Reaper(short, "w", lambda *words: sent.append(words))).reap_turns()
    assert len(sent) == number


async def test_while_no_turn_is_unfinished_reapers_tell_the_store_nothing(
    client: TurnsClient, short: Settings, store: redis.Redis
) -> None:
    looking = reaper(short)
    looking.reap_turns()
    assert not store.exists(Keys(short.namespace).reapers)
    await client.submitter.submit(request())
    looking.reap_turns()
    assert store.exists(Keys(short.namespace).reapers)


async def test_what_was_counted_is_folded_also_when_no_turn_is_unfinished_any_more(
    client: TurnsClient, short: Settings, store: redis.Redis
) -> None:
    ledger, keys = Ledger(short, "holder"), Keys(short.namespace)
    ledger.commit_transition(claimed(ledger, await client.submitter.submit(request())), PASSED)
    assert store.exists(keys.due, keys.pending) == 1
    reaper(short).reap_turns()
    assert not store.exists(keys.pending)


async def test_while_no_turn_is_unfinished_a_reaper_rests_until_a_new_one_may_be_due(
    client: TurnsClient, settings: Settings
) -> None:
    polled = reaper(replace(settings, announce_seconds=5.0, reap_seconds=1.0))
    polled.poll()
    assert polled.seconds == 4.0
    await client.submitter.submit(request())
    polled.poll()
    assert polled.seconds == 1.0


async def test_a_reaper_looks_as_often_as_ever_while_the_store_is_away(
    short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = reaper(replace(short, announce_seconds=60.0))
    polled.poll()
    assert polled.seconds > short.reap_seconds
    monkeypatch.setattr(polled._backlog, "is_empty", Mock(side_effect=ReadOnlyError))
    with pytest.raises(ReadOnlyError):
        polled.poll()
    assert polled.seconds == short.reap_seconds
