"""What a turn's holder can do, and what is refused to everybody else: claim, beat, append, commit, cancel."""

from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.event_kinds import AttemptAccepted, AttemptOutput
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnState, new_turn_id
from api_client.store.commands import ELSEWHERE_MS
from api_client.turns.record.claim import ClaimRefusal, CommitResult, LeaseClaim, LeaseLost
from api_client.turns.record.transition import Transition, progress
from tests import records
from tests.integration.lua.by_hand import FIRST, PASSED, claimed, log_of, request
from tests.on_loop import Ledger
from tests.support import wait_until


async def test_only_the_next_link_can_be_claimed_and_only_once(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    assert ledger.claim_turn(turn_id, "s-1", ChainTask(VALIDATE, 1)) == ClaimRefusal("not_next")
    claimed(ledger, turn_id)
    assert ledger.claim_turn(turn_id, "s-1", FIRST) == ClaimRefusal("held")
    assert ledger.claim_turn(new_turn_id(), "s-1", FIRST) == ClaimRefusal("missing")


async def test_a_claim_whose_reply_was_lost_finds_itself_and_counts_one_delivery(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request())
    changes = ledger._changes
    first, again = (
        ledger._run_exchange(changes.claim_turn(turn_id, "s-1", FIRST, "token-of-this-worker", 0.0)) for _ in range(2)
    )
    assert isinstance(first, LeaseClaim)
    assert isinstance(again, LeaseClaim)
    assert first.turn.delivery == again.turn.delivery == 1
    turn = await client.reader.read_turn(turn_id)
    assert (turn.delivery, turn.seq) == (1, 2)


async def test_those_whom_a_turn_avoids_leave_it_to_others_for_some_seconds_and_no_longer(
    client: TurnsClient, settings: Settings, store: redis.Redis
) -> None:
    here, twin, there = (Ledger(settings, name) for name in ("worker-1-1@a", "worker-1-1@aa", "worker-2-1@b"))
    turn_ids = [await client.submitter.submit(request(session_id=f"s-{number}")) for number in range(3)]
    transition = Transition(
        attempt=1, state=TurnState.QUEUED, next=FIRST, fields=progress(avoid="@a$ worker-2-"), delay_ms=1
    )
    for number, turn_id in enumerate(turn_ids):
        here.commit_transition(claimed(here, turn_id, session_id=f"s-{number}"), transition)
    avoided, over = turn_ids[0], Keys(settings.namespace).turn(turn_ids[1])
    for ledger in (here, there):
        await wait_until(lambda ledger=ledger: ledger.claim_turn(avoided, "s-0", FIRST) == ClaimRefusal("elsewhere"))  # type: ignore[misc]
    claimed(twin, avoided, session_id="s-0")
    await wait_until(lambda: here.claim_turn(turn_ids[1], "s-1", FIRST) == ClaimRefusal("elsewhere"))
    store.hset(over, "not_before", int(store.hget(over, "not_before") or 0) - ELSEWHERE_MS)  # type: ignore[arg-type]
    claimed(here, turn_ids[1], session_id="s-1")
    assert store.zscore(Keys(settings.namespace).due, avoided), "somebody looks at it again"


async def test_the_second_turn_of_a_session_waits_for_the_first(client: TurnsClient, ledger: Ledger) -> None:
    first, second = await client.submitter.submit(request("1")), await client.submitter.submit(request("2"))
    assert ledger.claim_turn(second, "s-1", FIRST) == ClaimRefusal("waiting")
    done = ledger.commit_transition(claimed(ledger, first), PASSED)
    assert (done.head, done.outcome) == (second, "passed")
    assert claimed(ledger, second).turn.request.prompt == "2"


async def test_a_turn_ends_once_with_its_answer_its_event_and_its_counters(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request())
    ledger.commit_transition(claimed(ledger, turn_id), PASSED)
    turn = await client.reader.read_turn(turn_id)
    assert (turn.state, turn.outcome, turn.response) == (TurnState.FINISHED, Outcome.PASSED, "Ja.")
    events = await log_of(client, turn_id)
    assert [event.kind for event in events] == ["turn.queued", "attempt.started", "turn.finished"]
    assert [event.seq for event in events] == [1, 2, 3]
    assert events[-1].data["response"] == "Ja."
    assert events[-1].data["error"] == {}
    keys = Keys(client.settings.namespace)
    assert records.counters(store, keys)["turn.finished|passed|scripted|v2|done|0"] == 1
    assert store.zscore(keys.due, turn_id) is None
    assert store.ttl(keys.turn(turn_id)) > 0
    assert not store.exists(keys.session("s-1"))


async def test_a_commit_whose_reply_was_lost_is_answered_not_repeated(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    first, second = await client.submitter.submit(request("1")), await client.submitter.submit(request("2"))
    claim = claimed(ledger, first)
    command = next(
        ledger._changes.commit_transition(claim, replace(PASSED, events=[AttemptAccepted(attempt=1, issues=())]), 0.0)
    )
    assert ledger._send_command(command) == ledger._send_command(command) == CommitResult(second, "passed")
    assert records.counters(store, Keys(client.settings.namespace))["turn.finished|passed|scripted|v2|done|0"] == 1
    assert len(await log_of(client, first)) == 4


async def test_an_append_whose_reply_was_lost_is_answered_not_repeated(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    command = next(ledger._changes.append_events(claim, [AttemptOutput(attempt=1, text="a")]))
    assert ledger._send_command(command) is ledger._send_command(command) is None
    assert (await client.reader.read_turn(turn_id)).seq == 3


async def test_a_worker_that_lost_its_turn_can_neither_beat_nor_append_nor_commit(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request())
    late = claimed(ledger, turn_id)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).what == "announce")
    again = claimed(ledger, turn_id)
    for forbidden in (
        lambda: ledger.renew_lease(late),
        lambda: ledger.append_events(late, [AttemptOutput(attempt=1, text="zu spät")]),
        lambda: ledger.commit_transition(late, PASSED),
    ):
        with pytest.raises(LeaseLost):
            forbidden()
    ledger.commit_transition(again, PASSED)
    turn = await client.reader.read_turn(turn_id)
    assert (turn.delivery, turn.strikes, turn.attempt) == (2, 1, 1)
    assert [event.kind for event in await log_of(client, turn_id)] == [
        "turn.queued",
        "attempt.started",
        "attempt.lost",
        "attempt.started",
        "turn.finished",
    ]


async def test_a_beat_keeps_the_turn_and_tells_of_a_cancel(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    before = (await client.reader.read_turn(turn_id)).lease_until
    assert ledger.renew_lease(claim) == ""
    assert (await client.reader.read_turn(turn_id)).lease_until >= before
    cancelling = await client.canceller.cancel(turn_id)
    assert (cancelling.state, cancelling.stop) == (TurnState.RUNNING, "cancelled")
    assert ledger.renew_lease(claim) == "cancelled"


async def test_a_yes_is_used_up_by_one_run_of_who_holds_the_turn_and_only_until_it_is_called_off(
    client: TurnsClient, ledger: Ledger, settings: Settings
) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    assert [ledger.use_up(claim, run) for run in ("r1", "r1", "r2")] == [True, True, False], (
        "sent again, it is the same"
    )
    assert (await client.reader.read_turn(turn_id)).answer_used == "r1"
    assert not ledger.use_up(replace(claim, token="another's"), "r1")
    await client.canceller.cancel(turn_id)
    assert not ledger.use_up(claim, "r1")


async def test_cancelling_a_waiting_turn_ends_it_and_is_idempotent(client: TurnsClient) -> None:
    first, second = await client.submitter.submit(request("1")), await client.submitter.submit(request("2"))
    for _ in range(2):
        assert (await client.canceller.cancel(second)).outcome is Outcome.CANCELLED
    assert (await client.reader.read_turn(first)).state is TurnState.QUEUED
    [*_, last] = await log_of(client, second)
    assert last.data["error"]["message"] == "The request was cancelled."


async def test_an_accepted_cancel_wins_over_an_answer_that_comes_later(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    await client.canceller.cancel(turn_id)
    assert ledger.commit_transition(claim, PASSED).outcome == "cancelled"
    assert (await client.reader.read_turn(turn_id)).response == ""


@pytest.mark.parametrize("wrong", ["due", "finished", "pending", "session"])
async def test_a_key_of_a_wrong_type_stops_a_command_before_it_changes_the_turn(
    wrong: str, client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    keys = Keys(client.settings.namespace)
    broken = keys.session("s-1") if wrong == "session" else getattr(keys, wrong)
    right = store.dump(broken)
    store.set(broken, "something else")

    def stored() -> list[object]:
        hashes = [store.hgetall(name) for name in (keys.turn(turn_id), keys.texts(turn_id), keys.attempts(turn_id))]
        return [*hashes, store.dump(keys.log(turn_id))]

    before = stored()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ledger._send_command(next(ledger._changes.commit_transition(claim, PASSED, 0.0)))
    assert stored() == before
    store.delete(broken)
    if right:
        store.restore(broken, 0, right)
    claim.outbox.clear()
    ledger.commit_transition(claim, PASSED)
    assert (await client.reader.read_turn(turn_id)).outcome is Outcome.PASSED


async def test_an_answer_that_used_up_the_budget_is_still_judged(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request(cost_limit_usd=0.5))
    ran = Transition(attempt=1, next=ChainTask(VALIDATE, 1), fields=progress(cost_used=600000))
    assert ledger.commit_transition(claimed(ledger, turn_id), ran).outcome == ""
    assert ledger.commit_transition(claimed(ledger, turn_id, ChainTask(VALIDATE, 1)), PASSED).outcome == "passed"


@pytest.fixture
def keepers(settings: Settings) -> tuple[Ledger, Ledger]:
    """Two workers that keep agents."""
    warm = replace(settings, claude_warm_seconds=60.0, affinity_patience=30.0)
    return Ledger(warm, "worker-1"), Ledger(warm, "worker-2")


def over(store: redis.Redis, settings: Settings, turn_id: str) -> None:
    """The time is over in which a turn is left to its keeper."""
    record = Keys(settings.namespace).turn(turn_id)
    assert int(store.hget(record, "kept_until") or 0)  # type: ignore[arg-type]
    store.hset(record, "kept_until", 1)


async def test_a_run_is_left_to_the_keeper_of_its_agent_for_a_while_and_then_to_anybody(
    client: TurnsClient, settings: Settings, store: redis.Redis, keepers: tuple[Ledger, Ledger]
) -> None:
    keeper, other = keepers
    first = await client.submitter.submit(request())
    keeper.set_affinity(first, "s-1", 60.0)
    for _ in range(2):
        assert other.claim_turn(first, "s-1", FIRST) == ClaimRefusal("kept", "worker-1")
    claim = claimed(keeper, first)
    assert claim.turn.delivery == 1
    assert keeper.find_affinity("s-1") == "worker-1", "it has its agent at work"
    assert store.hget(Keys(settings.namespace).turn(first), "kept_until") == b"0", "the next run is left to it anew"
    keeper.commit_transition(claim, Transition(attempt=1, state=TurnState.QUEUED, next=FIRST))
    assert other.claim_turn(first, "s-1", FIRST) == ClaimRefusal("kept", "worker-1"), "each run anew"
    over(store, settings, first)
    claimed(other, first)
    assert not keeper.find_affinity("s-1"), "what the keeper has is another conversation now"


@pytest.mark.parametrize("why", ["avoided", "strikes", "alone", "judged", "not kept", "no patience"])
async def test_a_run_that_cannot_be_the_keepers_is_not_left_to_it(
    why: str, client: TurnsClient, settings: Settings, store: redis.Redis, keepers: tuple[Ledger, Ledger]
) -> None:
    keeper, other = keepers
    turn_id = await client.submitter.submit(request())
    record = Keys(settings.namespace).turn(turn_id)
    if why != "not kept":
        keeper.set_affinity(turn_id, "s-1", 60.0)
    match why:
        case "avoided":
            store.hset(record, "avoid", "worker-1")
        case "strikes":
            store.hset(record, "strikes", 1)
        case "judged":
            claim = claimed(keeper, turn_id)
            keeper.commit_transition(claim, Transition(attempt=1, next=ChainTask(VALIDATE, 1)))
        case "no patience":
            other = Ledger(replace(settings, claude_warm_seconds=60.0, affinity_patience=0.0), "worker-2")
    link = ChainTask(VALIDATE, 1) if why == "judged" else FIRST
    assert isinstance(other.claim_turn(turn_id, "s-1", link, alone=why == "alone"), LeaseClaim)
    kept = why in ("judged", "no patience")
    assert keeper.find_affinity("s-1") == ("worker-1" if kept else "")


async def test_only_the_keeper_forgets_that_it_is(
    client: TurnsClient, settings: Settings, store: redis.Redis, keepers: tuple[Ledger, Ledger]
) -> None:
    keeper, other = keepers
    turn_id = await client.submitter.submit(request())
    keeper.set_affinity(turn_id, "s-1", 60.0)
    assert 50_000 < int(store.pttl(Keys(settings.namespace).affinity("s-1"))) <= 60_000  # type: ignore[arg-type]
    other.clear_affinity("s-1")
    assert other.find_affinity("s-1") == "worker-1"
    keeper.clear_affinity("s-1")
    assert not other.find_affinity("s-1")
