"""The Lua commands against a real server: what a turn's record, log, session and counters do, and refuse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import (
    BadRequest,
    IdempotencyConflict,
    NotFinished,
    SessionBusy,
    StoreUnavailable,
    TurnNotFound,
)
from api_client.contract.events import Event
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, VALIDATE, Link
from api_client.contract.turn import DoubleText, Outcome, TurnRequest, TurnState, new_turn_id
from api_client.submitter import Submitter
from tests.support import wait_until
from worker.turns.ledger import Claim, Fenced, Ledger, Refusal
from worker.turns.moves import Answer, Move
from worker.turns.reaper import Reaper

FIRST = Link(RUN, 1)
PASSED = Move(attempt=1, outcome=Outcome.PASSED, answer=Answer(response="Ja.", step="done", step_source="marker"))


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(settings) as made:
        yield made


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    """A worker's, whose leases run out soon: nobody but the test itself takes anything from it."""
    return Ledger(replace(settings, lease_seconds=0.5), "worker-1")


@pytest.fixture
def store(settings: Settings) -> redis.Redis:
    return redis.Redis.from_url(settings.redis_url)


def request(text: str = "Hallo", **more: object) -> TurnRequest:
    values = {"model": "scripted", "messages": ({"role": "user", "content": text},), "session_id": "s-1", **more}
    return TurnRequest(**values)  # type: ignore[arg-type]


def claimed(ledger: Ledger, turn_id: str, link: Link = FIRST, session_id: str = "s-1") -> Claim:
    claim = ledger.claim(turn_id, session_id, link)
    assert isinstance(claim, Claim), claim
    return claim


async def log_of(client: TurnsClient, turn_id: str) -> list[Event]:
    return [event async for event in client.follow(turn_id) if event is not None]


async def test_a_submitted_turn_is_queued_with_its_first_event(client: TurnsClient) -> None:
    turn_id = await client.submit(request())
    turn = await client.get(turn_id)
    assert (turn.state, turn.next, turn.attempt, turn.seq) == (TurnState.QUEUED, "turn.run/1", 1, 1)
    assert turn.request == request()


async def test_submitting_the_same_turn_id_twice_stores_it_once(client: TurnsClient, store: redis.Redis) -> None:
    turn_id = new_turn_id()
    assert await client.submit(request(), turn_id=turn_id) == turn_id
    assert await client.submit(request(), turn_id=turn_id) == turn_id
    keys = Keys(client.settings.namespace)
    assert store.lrange(keys.session("s-1"), 0, -1) == [turn_id.encode()]
    assert store.hget(keys.totals, "turn.submitted") == b"1"


async def test_a_repeated_idempotency_key_answers_the_first_turn_and_another_body_conflicts(
    client: TurnsClient,
) -> None:
    first = await client.submit(request(), idempotency_key="k")
    assert await client.submit(request(), idempotency_key="k") == first
    with pytest.raises(IdempotencyConflict, match="'k'"):
        await client.submit(request("Anders"), idempotency_key="k")
    assert await client.submit(request(owner="other"), idempotency_key="k") != first


@pytest.fixture
async def sharded(settings: Settings) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(replace(settings, shards=16)) as made:
        yield made


async def test_one_idempotency_key_is_one_turn_also_with_sessions_of_different_shards(sharded: TurnsClient) -> None:
    asked = [request(session_id=f"s-{number}") for number in range(24)]
    assert len({sharded.new_id(one.session_id).partition("-")[0] for one in asked}) > 8
    answers = await asyncio.gather(
        *(sharded.submit(one, idempotency_key="k") for one in asked * 2), return_exceptions=True
    )
    [turn_id] = {answer for answer in answers if isinstance(answer, str)}
    assert len([answer for answer in answers if isinstance(answer, IdempotencyConflict)]) == 2 * len(asked) - 2
    turn = await sharded.get(turn_id)
    assert await sharded.submit(turn.request, idempotency_key="k") == turn_id
    assert await sharded.submit(request(owner="other"), idempotency_key="k") != turn_id


async def test_a_key_whose_turn_was_never_stored_is_good_for_the_repeat_and_interrupts_nothing_later(
    sharded: TurnsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(double_text=DoubleText.INTERRUPT)
    with monkeypatch.context() as patched:
        patched.setattr(sharded.store, "change", AsyncMock(side_effect=StoreUnavailable("down")))
        patched.setattr(Submitter, "new_id", lambda *_: new_turn_id(7))
        with pytest.raises(StoreUnavailable):
            await sharded.submit(asked, idempotency_key="k")
    turn_id = await sharded.submit(asked, idempotency_key="k")
    assert turn_id.startswith("t7-")
    later = await sharded.submit(request("Später"), turn_id=new_turn_id(7))
    assert await sharded.submit(asked, idempotency_key="k") == turn_id
    assert (await sharded.get(later)).state is TurnState.QUEUED


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"model": "gpt-9"}, "model"),
        ({"messages": ()}, "messages"),
        ({"messages": ({"role": "assistant", "content": "x"},)}, "messages"),
        ({"messages": ({"role": "user", "content": "  "},)}, "messages"),
        ({"validators": ("step_markr",)}, "validators"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"deadline_seconds": 0.0}, "deadline_seconds"),
        ({"session_id": ""}, "session_id"),
    ],
)
async def test_a_request_that_can_never_work_is_refused_before_anything_is_written(
    client: TurnsClient, store: redis.Redis, bad: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await client.submit(request(**bad))
    assert refused.value.param == param
    assert store.keys(f"{client.settings.namespace}:*") == []


async def test_only_the_next_link_can_be_claimed_and_only_once(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request())
    assert ledger.claim(turn_id, "s-1", Link(VALIDATE, 1)) == Refusal("not_next")
    claimed(ledger, turn_id)
    assert ledger.claim(turn_id, "s-1", FIRST) == Refusal("held")
    assert ledger.claim(new_turn_id(), "s-1", FIRST) == Refusal("missing")


async def test_a_claim_whose_reply_was_lost_finds_itself_and_counts_one_delivery(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submit(request())
    arguments = ("turn.run/1", "token-of-this-worker", 1500, '"w"', 0, 5)
    first = ledger._call("claim", turn_id, "s-1", *arguments)
    again = ledger._call("claim", turn_id, "s-1", *arguments)
    assert first[0] == again[0] == b"claimed"
    turn = await client.get(turn_id)
    assert (turn.delivery, turn.seq) == (1, 2)


async def test_the_second_turn_of_a_session_waits_for_the_first(client: TurnsClient, ledger: Ledger) -> None:
    first, second = await client.submit(request("1")), await client.submit(request("2"))
    assert ledger.claim(second, "s-1", FIRST) == Refusal("waiting")
    done = ledger.commit(claimed(ledger, first), PASSED)
    assert (done.head, done.outcome) == (second, "passed")
    assert claimed(ledger, second).turn.request.prompt == "2"


async def test_reject_refuses_while_the_session_is_busy(client: TurnsClient, ledger: Ledger) -> None:
    first = await client.submit(request())
    with pytest.raises(SessionBusy, match=first):
        await client.submit(request(double_text=DoubleText.REJECT))
    ledger.commit(claimed(ledger, first), PASSED)
    await client.submit(request(double_text=DoubleText.REJECT))


async def test_interrupt_cancels_what_the_session_was_doing(client: TurnsClient) -> None:
    first = await client.submit(request())
    second = await client.submit(request(double_text=DoubleText.INTERRUPT))
    assert (await client.get(first)).outcome is Outcome.CANCELLED
    assert (await client.get(second)).state is TurnState.QUEUED


async def test_a_turn_ends_once_with_its_answer_its_event_and_its_counters(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submit(request())
    ledger.commit(claimed(ledger, turn_id), PASSED)
    turn = await client.get(turn_id)
    assert (turn.state, turn.outcome, turn.response) == (TurnState.FINISHED, Outcome.PASSED, "Ja.")
    events = await log_of(client, turn_id)
    assert [event.kind for event in events] == ["turn.queued", "attempt.started", "turn.finished"]
    assert [event.seq for event in events] == [1, 2, 3]
    assert events[-1].data["response"] == "Ja."
    assert events[-1].data["error"] == {}
    keys = Keys(client.settings.namespace)
    assert store.hget(keys.totals, "turn.finished|passed|scripted|v2|done|0") == b"1"
    assert store.zscore(keys.due, turn_id) is None
    assert store.ttl(keys.turn(turn_id)) > 0
    assert not store.exists(keys.session("s-1"))


async def test_a_commit_whose_reply_was_lost_is_answered_not_repeated(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    first, second = await client.submit(request("1")), await client.submit(request("2"))
    claim = claimed(ledger, first)
    arguments = (claim.token, 1, PASSED.to_json(), "attempt.accepted", json.dumps({"attempt": 1, "issues": []}))
    once = ledger._call("commit", first, "s-1", *arguments)
    again = ledger._call("commit", first, "s-1", *arguments)
    assert once == again == [b"done", second.encode(), b"passed"]
    assert store.hget(Keys(client.settings.namespace).totals, "turn.finished|passed|scripted|v2|done|0") == b"1"
    assert len(await log_of(client, first)) == 4


async def test_an_append_whose_reply_was_lost_is_answered_not_repeated(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request())
    claim = claimed(ledger, turn_id)
    arguments = (claim.token, 1, "attempt.output", json.dumps({"attempt": 1, "text": "a"}))
    assert ledger._call("append", turn_id, "s-1", *arguments) == [b"done", 3]
    assert ledger._call("append", turn_id, "s-1", *arguments) == [b"done", 3]
    assert (await client.get(turn_id)).seq == 3


async def test_a_worker_that_lost_its_turn_can_neither_beat_nor_append_nor_commit(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submit(request())
    late = claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap(turn_id, may_take=True).what == "announce")
    again = claimed(ledger, turn_id)
    for forbidden in (
        lambda: ledger.beat(late),
        lambda: ledger.append(late, [("attempt.output", {"attempt": 1, "text": "zu spät"})]),
        lambda: ledger.commit(late, PASSED),
    ):
        with pytest.raises(Fenced):
            forbidden()
    ledger.commit(again, PASSED)
    turn = await client.get(turn_id)
    assert (turn.delivery, turn.strikes, turn.attempt) == (2, 1, 1)
    assert [event.kind for event in await log_of(client, turn_id)] == [
        "turn.queued",
        "attempt.started",
        "attempt.lost",
        "attempt.started",
        "turn.finished",
    ]


async def test_a_beat_keeps_the_turn_and_tells_of_a_cancel(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request())
    claim = claimed(ledger, turn_id)
    before = (await client.get(turn_id)).lease_until
    assert ledger.beat(claim) == ""
    assert (await client.get(turn_id)).lease_until >= before
    cancelling = await client.cancel(turn_id)
    assert (cancelling.state, cancelling.stop) == (TurnState.RUNNING, "cancelled")
    assert ledger.beat(claim) == "cancelled"


async def test_a_reaper_that_may_not_take_leaves_a_lapsed_lease_alone(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request())
    claim = claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap(turn_id, may_take=False).what == "later")
    assert ledger.beat(claim) == "", "a beat with the unchanged token resumes"


async def test_an_unclaimed_turn_is_announced_again_later_and_later(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    ledger = Ledger(replace(settings, announce_seconds=0.2), "w")
    turn_id = await client.submit(request())
    due = Keys(settings.namespace).due
    waits = []
    for _ in range(3):
        await wait_until(lambda: ledger.reap(turn_id, may_take=True).what == "announce")
        now = store.time()
        waits.append((store.zscore(due, turn_id) or 0) - (now[0] * 1000 + now[1] / 1000))
    assert waits[0] < waits[1] < waits[2]


async def test_cancelling_a_waiting_turn_ends_it_and_is_idempotent(client: TurnsClient) -> None:
    first, second = await client.submit(request("1")), await client.submit(request("2"))
    for _ in range(2):
        assert (await client.cancel(second)).outcome is Outcome.CANCELLED
    assert (await client.get(first)).state is TurnState.QUEUED
    [*_, last] = await log_of(client, second)
    assert last.data["error"]["message"] == "Die Anfrage wurde abgebrochen."


async def test_a_cancelled_holder_that_died_is_ended_by_a_reaper(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request())
    claimed(ledger, turn_id)
    await client.cancel(turn_id)
    await wait_until(lambda: ledger.reap(turn_id, may_take=True).what == "finished")
    assert (await client.get(turn_id)).outcome is Outcome.CANCELLED


async def test_an_accepted_cancel_wins_over_an_answer_that_comes_later(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request())
    claim = claimed(ledger, turn_id)
    await client.cancel(turn_id)
    assert ledger.commit(claim, PASSED).outcome == "cancelled"
    assert (await client.get(turn_id)).response == ""


async def test_a_turn_past_its_deadline_expires_wherever_it_waits(client: TurnsClient, ledger: Ledger) -> None:
    first = await client.submit(request("1"))
    second = await client.submit(request("2", deadline_seconds=0.3))
    await wait_until(lambda: second in ledger.due(0))
    assert ledger.reap(second, may_take=True).outcome == "expired"
    assert (await client.get(first)).state is TurnState.QUEUED


async def test_a_turn_that_kills_its_workers_is_dead_after_its_last_strike(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    ledger = Ledger(replace(settings, strikes=2, lease_seconds=0.5), "w")
    turn_id = await client.submit(request(locale="en"))
    claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap(turn_id, may_take=True).what == "announce")
    assert ledger.claim(turn_id, "s-1", FIRST) == Refusal("alone"), "its last delivery is for a process of its own"
    assert isinstance(ledger.claim(turn_id, "s-1", FIRST, alone=True), Claim)
    await wait_until(lambda: ledger.reap(turn_id, may_take=True).outcome == "dead")
    assert "administrator" in (await client.get(turn_id)).error["message"]
    assert store.zscore(Keys(settings.namespace).dead, turn_id) is not None


async def test_a_wrong_typed_key_stops_a_command_before_its_first_write(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submit(request())
    claim = claimed(ledger, turn_id)
    keys = Keys(client.settings.namespace)
    store.set(keys.finished, "not a sorted set")
    before = store.hgetall(keys.turn(turn_id))
    with pytest.raises(redis.ResponseError, match="HELIX_WRONG_TYPE"):
        ledger.commit(claim, PASSED)
    assert store.hgetall(keys.turn(turn_id)) == before


async def test_a_turn_of_another_owner_is_not_found(client: TurnsClient) -> None:
    turn_id = await client.submit(request(owner="a"))
    for asked in (client.get, client.attempts, client.cancel):
        with pytest.raises(TurnNotFound):
            await asked(turn_id, owner="b")
    with pytest.raises(TurnNotFound):
        await client.get("../etc")


async def test_readers_that_start_late_or_come_back_see_every_event_once_in_order(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submit(request())
    claim = claimed(ledger, turn_id)
    live = client.follow(turn_id)
    seen = [await anext(live)]
    for number in range(1200):  # more than one page of the log
        ledger.append(claim, [("attempt.output", {"attempt": 1, "text": f"{number} "})])
    ledger.commit(claim, PASSED)
    seen += [event async for event in live]
    numbers = [event.seq for event in seen if event is not None]
    assert numbers == list(range(1, 1204))
    late = [event.seq async for event in client.follow(turn_id, after=600) if event is not None]
    assert late == list(range(601, 1204))
    turn = await client.get(turn_id)
    other_history = [e.seq async for e in client.follow(turn_id, after=600, epoch="0ther") if e is not None]
    assert other_history == list(range(1, 1204))
    assert turn.epoch != "0ther"


async def test_the_retry_rate_counts_turns_and_its_rows_count_attempts(client: TurnsClient, ledger: Ledger) -> None:
    retried = Move(
        attempt=1,
        state=TurnState.QUEUED,
        next=Link("turn.retry", 2),
        fields={"retries": "1"},
        counters={
            "attempt.judged|retry|scripted": 1,
            "validator.judged|step_marker|scripted": 1,
            "validator.rejected|step_marker|retry|scripted": 1,
            "code.rejected|MISSING_STEP_MARKER|retry": 1,
        },
    )
    first = await client.submit(request("1"))
    ledger.commit(claimed(ledger, first), retried)
    counters = {"attempt.judged|accept|scripted": 1, "validator.judged|step_marker|scripted": 1}
    ledger.commit(claimed(ledger, first, Link("turn.retry", 2)), replace(PASSED, attempt=2, counters=counters))
    second = await client.submit(request("2"))
    ledger.commit(claimed(ledger, second), replace(PASSED, counters=counters))
    whole = await client.retry_rate(3600)
    assert (whole.turns, whole.retried, whole.rate) == (2, 1, 0.5)
    [validator] = (await client.retry_rate(3600, "validator")).rows
    assert (validator.name, validator.rejected, validator.validated) == ("step_marker", 1, 3)
    [code] = (await client.retry_rate(3600, "code")).rows
    assert (code.name, code.rejected) == ("MISSING_STEP_MARKER", 1)
    [session] = (await client.retry_rate(3600, "session")).rows
    assert (session.name, session.rejected, session.validated) == ("s-1", 1, 2)
    [model] = (await client.retry_rate(3600, "model")).rows
    assert (model.name, model.rejected, model.validated) == ("scripted", 1, 2)
    with pytest.raises(ValueError, match="validator, code, model"):
        await client.retry_rate(3600, "weather")


async def test_the_retry_rate_tells_since_when_a_rule_rejects(client: TurnsClient, store: redis.Redis) -> None:
    now, names = time.time(), Keys(client.settings.namespace)
    for back, rejected in ((2, 0), (1, 3)):
        counted = {
            "validator.judged|step_marker|scripted": 4,
            "validator.rejected|step_marker|retry|scripted": rejected,
        }
        again = {"turn.finished|passed_after_retry|scripted|v2|what|1": rejected}
        store.hset(names.bucket("hour", now - back * 3600), mapping={**counted, **again})
    rate = await client.retry_rate(3 * 3600, "validator", "hour")
    assert (rate.retried, rate.turns, [row.rejected for row in rate.rows]) == (3, 3, [3])
    told = {piece.start: piece for piece in rate.pieces}
    quiet, loud = (told[(now - back * 3600) // 3600 * 3600] for back in (2, 1))
    assert [(row.rejected, row.rate) for row in quiet.rows] == [(0, 0.0)], "nothing rejected is said, not left out"
    assert [(row.rejected, row.rate) for row in loud.rows] == [(3, 0.75)]
    assert (quiet.rate, loud.rate) == (None, 1.0)
    starts = [piece.start for piece in rate.pieces]
    assert starts == [starts[0] + 3600 * number for number in range(len(starts))]
    for wrong, says in [((60, "session", "hour"), "session"), ((60, "", "week"), "minute, hour, day"),
                        ((60, "code", "", "m"), "not counted by model"),
                        ((4e7, "", "hour"), "is kept for"), ((172_000, "", "minute"), "pieces")]:  # fmt: skip
        with pytest.raises(ValueError, match=says):
            await client.retry_rate(*wrong)  # type: ignore[arg-type]


async def test_a_dead_letter_stays_until_it_is_dropped_and_its_replay_is_one_new_turn(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    ledger = Ledger(replace(settings, strikes=1, lease_seconds=0.5), "w")
    turn_id = await client.submit(request())
    with pytest.raises(NotFinished, match="still going on"):
        await client.replay(turn_id)
    assert isinstance(ledger.claim(turn_id, "s-1", FIRST, alone=True), Claim)
    await wait_until(lambda: ledger.reap(turn_id, may_take=True).outcome == "dead")
    assert [turn.turn_id for turn in await client.dead()] == [turn_id]
    key = Keys(settings.namespace).turn(turn_id)
    assert store.ttl(key) == -1
    replayed = await client.replay(turn_id)
    assert await client.replay(turn_id) == replayed != turn_id
    assert (await client.get(replayed)).replay_of == turn_id
    with pytest.raises(NotFinished, match="no dead letter"):
        await client.drop(replayed)
    for _ in range(2):
        await client.drop(turn_id)
    assert await client.dead() == []
    assert store.ttl(key) > 0


async def test_a_turn_whose_attempts_used_up_its_budget_expires_before_the_next_run(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submit(request(token_budget=1000))
    again = Move(attempt=1, state=TurnState.QUEUED, next=Link("turn.retry", 2), fields={"tokens_used": "1000"})
    assert ledger.commit(claimed(ledger, turn_id), again).outcome == "expired"
    turn = await client.get(turn_id)
    assert (turn.outcome, turn.error["reason"]) == (Outcome.EXPIRED, "tokens")


async def test_an_answer_that_used_up_the_budget_is_still_judged(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request(cost_budget_usd=0.5))
    ran = Move(attempt=1, next=Link(VALIDATE, 1), fields={"cost_used": "600000"})
    assert ledger.commit(claimed(ledger, turn_id), ran).outcome == ""
    assert ledger.commit(claimed(ledger, turn_id, Link(VALIDATE, 1)), PASSED).outcome == "passed"


async def test_a_lost_run_is_charged_what_was_set_aside_for_it(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submit(request(token_budget=900))
    for charged in (300, 600):
        claimed(ledger, turn_id)
        await wait_until(lambda: ledger.reap(turn_id, may_take=True).what == "announce")
        assert (await client.get(turn_id)).tokens_used == charged
    claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap(turn_id, may_take=True).outcome == "expired")


async def test_an_interrupt_whose_client_died_is_carried_out_by_a_reaper(client: TurnsClient, ledger: Ledger) -> None:
    first = await client.submit(request("1"))
    client._submitter._waiting = AsyncMock(return_value=[])  # the client dies before it can cancel
    second = await client.submit(request("2", double_text=DoubleText.INTERRUPT))
    found = await wait_until(lambda: (found := ledger.reap(second, may_take=True)).what == "interrupt" and found)
    assert found.head == first
    ledger.cancel(found.head, found.session_id)
    assert (await client.get(first)).outcome is Outcome.CANCELLED


async def test_a_reader_that_has_seen_the_end_is_told_nothing_and_one_from_beyond_it_starts_anew(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submit(request())
    ledger.commit(claimed(ledger, turn_id), PASSED)
    assert [event async for event in client.follow(turn_id, after=3)] == []
    assert [event.seq async for event in client.follow(turn_id, after=99) if event is not None] == [1, 2, 3]


async def test_waiting_for_a_result_ends_when_its_time_is_up(client: TurnsClient) -> None:
    turn_id = await client.submit(request())
    with pytest.raises(TimeoutError):
        await client.result(turn_id, timeout=0.3)


async def test_a_damaged_record_is_put_aside_and_holds_up_no_other_turn(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    damaged, sound = await client.submit(request("1")), await client.submit(request("2", session_id="s-2"))
    keys = Keys(settings.namespace)
    store.delete(keys.turn(damaged))
    store.set(keys.turn(damaged), "not a hash")
    store.zadd(keys.due, {damaged: 1, sound: 2})
    announced: list[str] = []
    Reaper(settings, "w", lambda _link, turn_id, _session: announced.append(turn_id)).look()
    assert announced == [sound]
    assert (store.zscore(keys.due, damaged) or 0) > store.time()[0] * 1000 + 30_000


async def test_after_the_clock_was_set_back_a_dead_holders_turn_is_taken_within_two_leases(
    settings: Settings, client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submit(request())
    claimed(ledger, turn_id)
    keys = Keys(settings.namespace)
    in_an_hour = (store.time()[0] + 3600) * 1000  # what the record says once the clock has gone back by an hour
    store.hset(keys.turn(turn_id), "lease_until", in_an_hour)
    store.zadd(keys.due, {turn_id: in_an_hour})
    assert ledger.due(0) == []
    ledger.recall(0)
    assert ledger.due(0) == [turn_id]
    assert ledger.reap(turn_id, may_take=True).what == "held"
    await wait_until(lambda: ledger.reap(turn_id, may_take=True).what == "announce")


async def test_a_reader_of_a_turn_that_the_store_lost_is_told_instead_of_waiting_for_ever(
    client: TurnsClient, store: redis.Redis
) -> None:
    turn_id = await client.submit(request())
    events = client.follow(turn_id)
    await anext(events)
    keys = Keys(client.settings.namespace)
    store.delete(keys.turn(turn_id), keys.log(turn_id))
    with pytest.raises(TurnNotFound):
        async for _ in events:
            pass
