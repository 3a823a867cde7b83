"""Pauses and breakers on a real store: what they hold back, how it is told, and how it goes on by itself."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest
from api_client.contract.intake_pause import IntakePaused
from api_client.contract.keys import Keys
from api_client.contract.owners import owner_of_name
from api_client.contract.settings import Settings
from api_client.contract.tasks import RETRY, VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnState
from api_client.pauses.pause import Pause
from api_client.turns.record.claim import ClaimRefusal, CommitResult, LeaseClaim
from api_client.turns.record.transition import Transition
from tests import records
from tests.accounts import disagreements
from tests.integration.lua.by_hand import FIRST, PASSED, claimed, request
from tests.on_loop import Ledger
from tests.support import wait_for, wait_until

MODEL = Pause(what="model", name="scripted", reason="provider outage", by="ops")
FAILED = Transition(attempt=1, state=TurnState.QUEUED, next=FIRST, service="failed", service_reason="HTTP 503")
ANSWERED = replace(PASSED, service="answered")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, breaker_errors=2, breaker_seconds=100.0)


async def kinds_of(client: TurnsClient, turn_id: str) -> list[str]:
    return [event.kind for event in await client.reader.read_events(turn_id)]


def reaped(ledger: Ledger, turn_id: str) -> str:
    return ledger.reap_turn(turn_id, may_take=True).what


def time_passes(store: redis.Redis, settings: Settings) -> None:
    """Every pause and breaker comes to its end now, and the turns they hold back are due, as they would be then."""
    before: Any = store.time()
    wait_for(lambda: store.time()[1] // 1000 != before[1] // 1000)  # type: ignore[index]  # runs begin in a later ms
    seconds, _ = store.time()  # type: ignore[misc]
    keys, now = Keys(settings.namespace), int(seconds) * 1000
    found: Any = store.hgetall(keys.pauses)
    for name, text in found.items():
        told = json.loads(text)
        if isinstance(told, dict):
            store.hset(keys.pauses, name, json.dumps(told | {"until_ms": now - 1}))
    ids: Any = store.zrange(keys.held, 0, -1)
    for turn_id in ids:
        store.zadd(keys.due, {turn_id: now}, xx=True)


async def failed(client: TurnsClient, ledger: Ledger, session: str) -> str:
    """A turn whose agent's service failed once; it is at rest again."""
    turn_id = await client.submitter.submit(request(session_id=session))
    ledger.commit_transition(claimed(ledger, turn_id, session_id=session), FAILED)
    return turn_id


async def opened(client: TurnsClient, ledger: Ledger) -> list[str]:
    """Two turns by which the model's breaker opened."""
    return [await failed(client, ledger, session) for session in ("a", "b")]


async def held(client: TurnsClient, turn_id: str) -> bool:
    return (await kinds_of(client, turn_id))[-1] == "turn.paused"


# -- pauses -----------------------------------------------------------------------------------------------------------


async def test_a_turn_of_a_paused_model_waits_from_the_start_and_is_told_why(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    begun = await client.pauses.set_pause(MODEL, seconds=3600)
    turn_id = await client.submitter.submit(request())
    [_, told] = await client.reader.read_events(turn_id)
    assert (told.kind, told.data) == (
        "turn.paused",
        {"what": "model", "reason": "provider outage", "until": int(begun.until)},
    )
    assert store.llen(f"{client.settings.namespace}:celery:helix.run") == 0, "nothing is announced"
    assert ledger.claim_turn(turn_id, "s-1", FIRST) == ClaimRefusal("held_back")
    assert await kinds_of(client, turn_id) == ["turn.queued", "turn.paused"], "told once"
    assert await client.pauses.count_held() == 1


async def test_a_turn_that_was_announced_before_is_refused_to_its_worker(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    await client.pauses.set_pause(MODEL)
    assert ledger.claim_turn(turn_id, "s-1", FIRST) == ClaimRefusal("held_back")
    standing = await client.workers.read_state()
    assert (standing.waiting_by_queue["helix.run"], standing.unfinished) == (0, 1), "no worker could take it now"


async def test_resumed_turns_are_announced_at_once_and_run(client: TurnsClient, ledger: Ledger) -> None:
    await client.pauses.set_pause(MODEL)
    turn_id = await client.submitter.submit(request())
    assert ledger.list_due() == []
    assert await client.pauses.end_pause("model", "scripted", by="ops")
    assert ledger.list_due() == [turn_id]
    assert reaped(ledger, turn_id) == "announce"
    ledger.commit_transition(claimed(ledger, turn_id), PASSED)
    assert await kinds_of(client, turn_id) == [
        "turn.queued",
        "turn.paused",
        "turn.resumed",
        "attempt.started",
        "turn.finished",
    ]
    assert await client.pauses.count_held() == 0
    assert not await client.pauses.end_pause("model", "scripted", by="ops"), "nothing was paused any more"


async def test_a_pause_ends_by_itself_at_its_end(
    settings: Settings, client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    await client.pauses.set_pause(MODEL, seconds=20.0 * settings.announce_seconds)
    turn_id = await client.submitter.submit(request())
    [pause] = await client.pauses.list_active()
    assert pause.title == "model scripted"
    assert store.zscore(Keys(settings.namespace).due, turn_id) == round(pause.until * 1000), "nobody looks before"
    time_passes(store, ledger.settings)
    assert reaped(ledger, turn_id) == "announce"
    assert await client.pauses.list_active() == []


async def test_the_deadline_of_a_turn_stands_still_while_it_is_paused(client: TurnsClient, ledger: Ledger) -> None:
    await client.pauses.set_pause(MODEL)
    turn_id = await client.submitter.submit(request(deadline_seconds=3.0))
    before = await client.reader.read_turn(turn_id)
    await wait_until(lambda: ledger.server_time() > before.deadline_at)
    ledger.recall_turns()
    assert reaped(ledger, turn_id) == "held_back"
    await client.pauses.end_pause("model", "scripted", by="ops")
    assert reaped(ledger, turn_id) == "announce"
    assert (await client.reader.read_turn(turn_id)).deadline_at > before.deadline_at + 2.9


async def test_the_time_of_a_turn_does_not_count_the_pause_it_waited_for(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    await client.pauses.set_pause(MODEL)
    turn_id = await client.submitter.submit(request())
    until = ledger.server_time() + 1.5
    await wait_until(lambda: ledger.server_time() > until)
    await client.pauses.end_pause("model", "scripted", by="ops")
    ledger.commit_transition(claimed(ledger, turn_id), PASSED)
    turn = await client.reader.read_turn(turn_id)
    counted = records.counters(store, Keys(client.settings.namespace))["time.turn.ms"] / 1000
    assert turn.finished_at - turn.created_at - counted >= 1.4
    assert disagreements(client.settings) == {}


async def test_an_agent_at_work_finishes_and_its_answer_is_judged_but_no_retry_starts(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    await client.pauses.set_pause(MODEL)
    judging = ledger.commit_transition(claim, Transition(attempt=1, next=ChainTask(VALIDATE, 1)), keep=True)
    assert isinstance(judging, LeaseClaim), "judging is not paused"
    retry = ChainTask(RETRY, 2)
    transition = Transition(attempt=1, state=TurnState.QUEUED, next=retry)
    assert ledger.commit_transition(judging, transition, keep=True) == CommitResult("", "")
    assert await held(client, turn_id)
    await client.pauses.end_pause("model", "scripted", by="ops")
    assert reaped(ledger, turn_id) == "announce"
    assert claimed(ledger, turn_id, retry).turn.attempt == 2


async def test_a_paused_check_queue_keeps_answers_from_being_judged(client: TurnsClient, ledger: Ledger) -> None:
    await client.pauses.set_pause(Pause(what="queue", name="check"))
    turn_id = await client.submitter.submit(request())
    transition = Transition(attempt=1, next=ChainTask(VALIDATE, 1))
    assert ledger.commit_transition(claimed(ledger, turn_id), transition, keep=True) == CommitResult("", "")
    assert ledger.claim_turn(turn_id, "s-1", ChainTask(VALIDATE, 1)) == ClaimRefusal("held_back")


@pytest.mark.parametrize(
    ("pause", "matching", "other"),
    [
        (Pause(what="queue", name="run"), {}, None),
        (Pause(what="owner", name="alice"), {"owner": owner_of_name("alice")}, {"owner": "bob"}),
        (Pause(what="key", name="webui"), {"key": "webui"}, {"key": "other"}),
    ],
)
async def test_a_pause_holds_back_its_own_turns_only(
    pause: Pause, matching: dict[str, str], other: dict[str, str] | None, client: TurnsClient, ledger: Ledger
) -> None:
    await client.pauses.set_pause(pause)
    assert await held(client, await client.submitter.submit(request(**matching)))
    if other is not None:
        claimed(ledger, await client.submitter.submit(request(session_id="o", **other)), session_id="o")


async def test_a_paused_intake_refuses_new_turns_and_lets_stored_ones_run(client: TurnsClient, ledger: Ledger) -> None:
    stored = await client.submitter.submit(request(), idempotency_key="k")
    begun = await client.pauses.set_pause(Pause(what="intake", reason="maintenance"), seconds=60)
    with pytest.raises(IntakePaused, match="maintenance") as refused:
        await client.submitter.submit(request("2"))
    assert refused.value.until == pytest.approx(begun.until, abs=0.002)
    assert await client.submitter.submit(request(), idempotency_key="k") == stored, "what is stored is answered"
    claimed(ledger, stored)
    await client.pauses.end_pause("intake", by="ops")
    await client.submitter.submit(request("2"))


async def test_a_held_turn_can_be_cancelled_and_leaves_nothing_behind(client: TurnsClient) -> None:
    await client.pauses.set_pause(MODEL)
    turn_id = await client.submitter.submit(request())
    assert (await client.canceller.cancel(turn_id)).outcome is Outcome.CANCELLED
    assert await client.pauses.count_held() == 0


async def test_a_turn_under_two_pauses_waits_for_both(client: TurnsClient, ledger: Ledger) -> None:
    await client.pauses.set_pause(MODEL)
    await client.pauses.set_pause(Pause(what="queue", name="run"))
    turn_id = await client.submitter.submit(request())
    await client.pauses.end_pause("queue", "run", by="ops")
    assert reaped(ledger, turn_id) == "held_back"
    await client.pauses.end_pause("model", "scripted", by="ops")
    assert reaped(ledger, turn_id) == "announce"


@pytest.mark.parametrize(
    ("pause", "param"),
    [
        (Pause(what="moon"), "what"),
        (Pause(what="intake", name="x"), "name"),
        (Pause(what="model"), "name"),
        (Pause(what="model", name="nobody"), "name"),
        (Pause(what="queue", name="fast"), "name"),
        (Pause(what="intake", reason="two\nlines"), "reason"),
        (Pause(what="intake", until=1.0), "until"),
    ],
)
async def test_a_pause_that_can_never_work_is_refused(pause: Pause, param: str, client: TurnsClient) -> None:
    with pytest.raises(BadRequest) as refused:
        await client.pauses.set_pause(pause)
    assert refused.value.param == param
    assert await client.pauses.list_active() == []


async def test_pausing_and_resuming_leave_a_line_in_the_audit_log(client: TurnsClient) -> None:
    await client.pauses.set_pause(MODEL)
    await client.pauses.end_all(by="night shift")
    lines = await client.audit.read_lines()
    assert [(line.action, line.by) for line in lines] == [("pause", "ops"), ("resume", "night shift")]


# -- breakers ---------------------------------------------------------------------------------------------------------


async def test_errors_in_a_row_open_the_models_breaker_and_its_turns_wait(client: TurnsClient, ledger: Ledger) -> None:
    await failed(client, ledger, "a")
    assert await client.pauses.list_active() == []
    await failed(client, ledger, "b")
    [breaker] = await client.pauses.list_active()
    assert (breaker.title, breaker.errors, breaker.reason) == ("breaker scripted", 2, "HTTP 503")
    assert await held(client, await client.submitter.submit(request()))


async def test_an_answer_between_two_errors_keeps_the_breaker_closed(client: TurnsClient, ledger: Ledger) -> None:
    await failed(client, ledger, "a")
    turn_id = await client.submitter.submit(request())
    ledger.commit_transition(claimed(ledger, turn_id), ANSWERED)
    await failed(client, ledger, "b")
    assert await client.pauses.list_active() == []


async def test_a_breaker_whose_time_is_over_lets_one_turn_try_and_closes_when_it_is_answered(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    await opened(client, ledger)
    turns = [await client.submitter.submit(request(session_id=f"s{n}")) for n in range(3)]
    time_passes(store, ledger.settings)
    assert sorted(reaped(ledger, turn_id) for turn_id in turns) == ["announce", "held_back", "held_back"]
    [breaker] = await client.pauses.list_active()
    assert breaker.probing
    [probe] = [turn_id for turn_id in turns if not await held(client, turn_id)]
    ledger.commit_transition(claimed(ledger, probe, session_id=f"s{turns.index(probe)}"), ANSWERED)
    assert await client.pauses.list_active() == []
    rest = [turn_id for turn_id in turns if turn_id != probe]
    assert [reaped(ledger, turn_id) for turn_id in rest] == ["announce", "announce"]


async def test_a_probe_that_fails_opens_the_breaker_for_twice_as_long(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, _ = await opened(client, ledger)
    time_passes(store, ledger.settings)
    ledger.commit_transition(claimed(ledger, a, session_id="a"), FAILED)
    [again] = await client.pauses.list_active()
    assert (again.errors, again.probing) == (3, False)
    assert again.until - ledger.server_time() > 1.5 * 100


async def test_a_probe_that_says_nothing_leaves_its_place_to_another_turn(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, b = await opened(client, ledger)
    time_passes(store, ledger.settings)
    claim = claimed(ledger, a, session_id="a")
    assert ledger.claim_turn(b, "b", FIRST) == ClaimRefusal("held_back")
    ledger.commit_transition(claim, replace(PASSED, outcome=Outcome.CANCELLED))
    assert b in ledger.list_due(), "it is looked at at once"
    claimed(ledger, b, session_id="b")


async def test_a_probe_whose_worker_died_is_delivered_again_and_still_is_the_probe(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, b = await opened(client, ledger)
    time_passes(store, ledger.settings)
    claimed(ledger, a, session_id="a")
    await wait_until(lambda: reaped(ledger, a) == "announce")
    assert ledger.claim_turn(b, "b", FIRST) == ClaimRefusal("held_back")
    ledger.commit_transition(claimed(ledger, a, session_id="a"), ANSWERED)
    assert await client.pauses.list_active() == []


async def test_an_error_of_a_run_that_began_before_the_breaker_opened_changes_nothing(
    client: TurnsClient, ledger: Ledger
) -> None:
    late = await client.submitter.submit(request(session_id="late"))
    claim = claimed(ledger, late, session_id="late")
    await opened(client, ledger)
    [before] = await client.pauses.list_active()
    ledger.commit_transition(claim, FAILED)
    assert await client.pauses.list_active() == [before]


async def test_a_commit_that_is_repeated_counts_its_error_once(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    command = next(ledger._changes.commit_transition(claim, FAILED, 0.0))
    ledger._send_command(command)
    ledger._send_command(command)
    assert await client.pauses.list_active() == []


async def test_a_turn_behind_an_open_breaker_expires_at_its_deadline(
    settings: Settings, client: TurnsClient, ledger: Ledger
) -> None:
    slow = Ledger(replace(settings, breaker_seconds=600.0), "w")
    await opened(client, slow)
    turn_id = await client.submitter.submit(request(deadline_seconds=0.3))
    await wait_until(lambda: turn_id in ledger.list_due())
    assert reaped(ledger, turn_id) == "finished"
    assert (await client.reader.read_turn(turn_id)).outcome is Outcome.EXPIRED


async def test_resuming_a_model_closes_its_breaker(client: TurnsClient, ledger: Ledger) -> None:
    a, _ = await opened(client, ledger)
    assert await client.pauses.end_pause("model", "scripted", by="ops")
    assert await client.pauses.list_active() == []
    claimed(ledger, a, session_id="a")


async def test_a_breaker_that_is_switched_off_never_opens(settings: Settings, client: TurnsClient) -> None:
    ledger = Ledger(replace(settings, breaker_errors=0), "w")
    for session in "abcde":
        await failed(client, ledger, session)
    assert await client.pauses.list_active() == []


async def test_nothing_of_a_pause_outlives_the_turns_it_held(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, b = await opened(client, ledger)
    for turn_id in (a, b):
        await client.canceller.cancel(turn_id)
    await client.pauses.end_all(by="ops")
    keys = Keys(client.settings.namespace)
    assert store.exists(keys.pauses, keys.held) == 0


# -- limits of services -----------------------------------------------------------------------------------------------

LIMITED = replace(FAILED, service="limited", service_reason="HTTP 429", service_wait_ms=20_000)


async def limited(client: TurnsClient, ledger: Ledger, *sessions: str) -> list[str]:
    """Turns that run at once, and of which each meets the service's limit."""
    ids = [await client.submitter.submit(request(session_id=session)) for session in sessions]
    claims = [claimed(ledger, turn_id, session_id=session) for turn_id, session in zip(ids, sessions, strict=True)]
    for claim in claims:
        ledger.commit_transition(claim, LIMITED)
    return ids


async def test_the_first_429_holds_back_all_turns_of_the_service_for_as_long_as_it_asks(
    client: TurnsClient, ledger: Ledger
) -> None:
    [a] = await limited(client, ledger, "a")
    [limit] = await client.pauses.list_active()
    assert (limit.title, limit.errors, limit.reason) == ("limit scripted", 1, "HTTP 429")
    assert 19 < limit.until - ledger.server_time() <= 20
    assert await held(client, a)
    assert await held(client, await client.submitter.submit(request()))


async def test_under_a_limit_one_run_a_second_tries_and_with_each_that_is_answered_the_others_come_faster(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    sessions = "abcde"
    ids = await limited(client, ledger, *sessions)
    for turn_id, session, wait in zip(ids, sessions, (1.0, 0.5, 0.25, 0.125, 0.0), strict=True):
        time_passes(store, ledger.settings)
        claim = claimed(ledger, turn_id, session_id=session)
        limits = await client.pauses.list_active()
        assert [round(each.until - ledger.server_time(), 2) <= wait for each in limits] == ([True] if wait else [])
        if wait == 1.0:
            assert ledger.claim_turn(ids[-1], "e", FIRST) == ClaimRefusal("held_back"), "one has just begun"
        ledger.commit_transition(claim, ANSWERED)
        assert set(ids[ids.index(turn_id) + 1 :]) <= set(ledger.list_due()), "who waits is looked at now"
    assert await client.pauses.list_active() == []


async def test_an_answer_ends_a_limit_behind_which_nobody_waits(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    [a] = await limited(client, ledger, "a")
    time_passes(store, ledger.settings)
    ledger.commit_transition(claimed(ledger, a, session_id="a"), ANSWERED)
    assert await client.pauses.list_active() == []


async def test_a_try_that_is_refused_doubles_the_time_between_two(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, b = await limited(client, ledger, "a", "b")
    for most in (2, 4, 8):
        time_passes(store, ledger.settings)
        ledger.commit_transition(claimed(ledger, a, session_id="a"), replace(LIMITED, service_wait_ms=0))
        [limit] = await client.pauses.list_active()
        assert most - 1 < limit.until - ledger.server_time() <= most
        assert ledger.claim_turn(b, "b", FIRST) == ClaimRefusal("held_back")


async def test_turns_behind_a_limit_come_back_one_after_the_other(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    ids = await limited(client, ledger, *"abcd")
    due = [int(store.zscore(Keys(client.settings.namespace).due, each)) for each in ids]  # type: ignore[arg-type]
    assert [round((later - earlier) / 1000) for earlier, later in itertools.pairwise(due)] == [1, 1, 1]


async def test_a_turn_is_told_of_a_limit_once_however_often_others_try(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, b = await limited(client, ledger, "a", "b")
    for _ in range(3):
        time_passes(store, ledger.settings)
        ledger.commit_transition(claimed(ledger, a, session_id="a"), LIMITED)
        ledger.recall_turns()
        assert reaped(ledger, b) == "held_back"
    assert (await kinds_of(client, b)).count("turn.paused") == 1


async def test_a_limit_is_no_error_of_the_models_service(client: TurnsClient, ledger: Ledger) -> None:
    await failed(client, ledger, "a")
    await limited(client, ledger, "b")
    assert await client.pauses.end_pause("limit", "scripted", by="ops")
    await failed(client, ledger, "c")
    assert await client.pauses.list_active() == []


async def test_models_of_one_address_and_key_share_its_limit(settings: Settings) -> None:
    asks = {"openai_url": "https://llm.example/v1", "openai_api_key": "k"}
    models = dict.fromkeys(("scripted", "twin", "other"), "openai_http:m")
    used = replace(
        settings,
        models=models,
        model_settings={"scripted": asks, "twin": asks, "other": asks | {"openai_api_key": "z"}},
    )
    assert len({used.find_service(model) for model in models}) == 2
    async with TurnsClient(used) as client:
        ledger = Ledger(used, "w")
        await limited(client, ledger, "a")
        assert await held(client, await client.submitter.submit(request(session_id="b", model="twin")))
        assert not await held(client, await client.submitter.submit(request(session_id="c", model="other")))
        assert await client.pauses.end_pause("model", "twin", by="ops")
        assert await client.pauses.list_active() == []
