"""A day's budgets on a real store: what is set aside, charged once, and when new turns are refused."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.budgets import budget_admission
from api_client.budgets.budget import DAY_SECONDS
from api_client.budgets.errors import BudgetExceeded
from api_client.budgets.keys import BudgetKeys
from api_client.client import TurnsClient
from api_client.contract.admission import Submission
from api_client.contract.errors import SessionBusy
from api_client.contract.escalation import Escalation
from api_client.contract.settings import Settings
from api_client.contract.tasks import VALIDATE, ChainTask
from api_client.contract.turn import DoubleText, new_turn_id
from api_client.turns.record.transition import Transition, progress
from tests.integration.lua.by_hand import PASSED, claimed, request
from tests.on_loop import Ledger

#: A run of the model costs so much lately, so a turn that has one run sets that aside.
ONE_RUN: dict[str, Any] = {"max_attempts": 1}
RUN_OVER = Transition(attempt=1, next=ChainTask(VALIDATE, 1), run_ended=True)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, budgets={"all": 10.0, "owner:*": 1.0, "key:big": 2.0, "model:scripted": 5.0})


@pytest.fixture
def priced(settings: Settings, store: redis.Redis) -> None:
    store.hset(BudgetKeys(settings.namespace).prices, "scripted", 400_000)


async def ended(client: TurnsClient, ledger: Ledger, session: str, dollars: float, **more: object) -> str:
    """A turn that has cost so much, and has ended."""
    turn_id = await client.submitter.submit(request(session_id=session, **more))
    claim = claimed(ledger, turn_id, session_id=session)
    ledger.commit_transition(claim, replace(PASSED, fields=progress(cost_used=int(dollars * 1e6))))
    return turn_id


async def spent(client: TurnsClient) -> dict[str, float]:
    return {each.scope: each.spent_usd for each in await client.spending.read_today()}


async def test_a_turn_is_charged_what_it_cost_to_each_budget_that_it_counts_for(
    client: TurnsClient, ledger: Ledger
) -> None:
    await ended(client, ledger, "a", 0.25, owner="alice", key="small")
    await ended(client, ledger, "b", 0.5, owner="bob", key="big")
    assert await spent(client) == {
        "all": 0.75,
        "owner:alice": 0.25,
        "owner:bob": 0.5,
        "key:big": 0.5,
        "model:scripted": 0.75,
    }


@pytest.mark.usefixtures("priced")
async def test_what_a_turn_may_cost_is_set_aside_until_it_ends(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request(owner="alice", **ONE_RUN))
    assert (await spent(client))["owner:alice"] == 0.4
    ledger.commit_transition(claimed(ledger, turn_id), replace(PASSED, fields=progress(cost_used=100000)))
    assert (await spent(client))["owner:alice"] == 0.1


async def test_a_spent_budget_refuses_the_owners_turns_and_no_others(client: TurnsClient, ledger: Ledger) -> None:
    await ended(client, ledger, "a", 1.2, owner="alice")
    with pytest.raises(BudgetExceeded) as refused:
        await client.submitter.submit(request(session_id="b", owner="alice"))
    error = refused.value
    assert (error.kind, error.spent_usd, error.limit_usd) == ("owner", 1.2, 1.0)
    assert 0 < error.seconds <= DAY_SECONDS
    assert error.resets_at % DAY_SECONDS == 0
    await client.submitter.submit(request(session_id="c", owner="bob"))


async def test_what_ended_before_a_submit_counts_for_it_however_cheap_it_seemed(
    client: TurnsClient, ledger: Ledger
) -> None:
    """Nothing is known of the first turn's cost when it is handed in: it is charged before the second is let in."""
    first = await client.submitter.submit(request(session_id="a", owner="alice"))
    assert (await spent(client))["owner:alice"] == 1.0
    claim = claimed(ledger, first, session_id="a")
    ledger.commit_transition(claim, replace(PASSED, fields=progress(cost_used=1000000)))
    with pytest.raises(BudgetExceeded):
        await client.submitter.submit(request(session_id="b", owner="alice"))


async def test_each_run_that_a_turn_may_have_sets_aside_the_price_of_the_models_dearest(
    client: TurnsClient, ledger: Ledger
) -> None:
    await ended(client, ledger, "a", 0.3, owner="alice")
    await ended(client, ledger, "b", 0.1, owner="alice")
    await client.submitter.submit(request(session_id="c", owner="bob", max_attempts=3))
    assert (await spent(client))["owner:bob"] == 0.855, "three times 0.3, of which a cheaper turn forgets a twentieth"


async def test_the_runs_of_an_escalation_to_another_model_are_set_aside_too(
    client: TurnsClient, ledger: Ledger
) -> None:
    await ended(client, ledger, "a", 0.1, owner="alice")
    to = Escalation(model="scripted", runs=2)
    await client.submitter.submit(request(session_id="b", owner="bob", max_attempts=3, attached=to.attached))
    assert (await spent(client))["owner:bob"] == 0.5


@pytest.mark.parametrize(("limit", "aside"), [(0.000001, 0.3), (0.3, 0.3), (0.31, 0.6), (50.0, 0.9)])
async def test_a_callers_cost_limit_lowers_what_is_set_aside_to_the_runs_that_it_leaves_and_never_below_one(
    client: TurnsClient, ledger: Ledger, limit: float, aside: float
) -> None:
    await ended(client, ledger, "a", 0.3, owner="alice")
    await client.submitter.submit(request(session_id="b", owner="bob", max_attempts=3, cost_limit_usd=limit))
    assert (await spent(client))["owner:bob"] == aside


async def test_a_model_without_a_price_is_taken_to_be_as_dear_as_the_dearest(
    client: TurnsClient, store: redis.Redis
) -> None:
    store.hset(BudgetKeys(client.settings.namespace).prices, mapping={"cheap": 1_000, "dear": 200_000})
    await client.submitter.submit(request(owner="bob", **ONE_RUN))
    assert (await spent(client))["owner:bob"] == 0.2


async def test_while_no_price_is_known_one_turn_holds_what_is_left_and_says_when_to_come_again(
    client: TurnsClient, ledger: Ledger
) -> None:
    first = await client.submitter.submit(request(session_id="a", owner="alice", cost_limit_usd=0.000001))
    with pytest.raises(BudgetExceeded) as refused:
        await client.submitter.submit(request(session_id="b", owner="alice"))
    assert refused.value.seconds < 60
    [alice] = [each for each in await client.spending.read_today() if each.scope == "owner:alice"]
    assert (alice.spent_usd, alice.set_aside_usd, alice.state) == (1.0, 1.0, "ok"), "nobody is called for help"
    ledger.commit_transition(claimed(ledger, first, session_id="a"), replace(PASSED, fields=progress(cost_used=100000)))
    await client.submitter.submit(request(session_id="b", owner="alice", **ONE_RUN))
    assert (await spent(client))["owner:alice"] == 0.2


async def test_a_turn_that_goes_on_after_its_first_run_gives_back_what_was_guessed(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request(owner="alice", max_attempts=3))
    claim = claimed(ledger, turn_id)
    ledger.commit_transition(claim, replace(RUN_OVER, fields=progress(cost_used=20_000)))
    assert (await spent(client))["owner:alice"] == 0.06


async def test_a_turn_that_never_ran_tells_no_price(client: TurnsClient, store: redis.Redis) -> None:
    await client.canceller.cancel(await client.submitter.submit(request(owner="alice")))
    assert (await spent(client))["owner:alice"] == 0.0
    assert not store.exists(BudgetKeys(client.settings.namespace).prices)


async def test_a_free_model_sets_nothing_aside(client: TurnsClient, ledger: Ledger) -> None:
    await ended(client, ledger, "a", 0.0, owner="alice")
    await client.submitter.submit(request(session_id="b", owner="bob"))
    assert (await spent(client))["owner:bob"] == 0.0


@pytest.mark.usefixtures("priced")
async def test_a_repeat_with_its_key_finds_its_turn_behind_a_budget_without_room(client: TurnsClient) -> None:
    asked = request(session_id="a", owner="alice", max_attempts=3)
    turn_id = await client.submitter.submit(asked, idempotency_key="k")
    with pytest.raises(BudgetExceeded):
        await client.submitter.submit(asked)
    assert await client.submitter.submit(asked, idempotency_key="k") == turn_id


async def test_settling_at_the_same_time_charges_once(settings: Settings, client: TurnsClient, ledger: Ledger) -> None:
    await ended(client, ledger, "a", 0.25, owner="alice")
    async with TurnsClient(settings) as other:
        await asyncio.gather(*(each.spending.settle_reservations() for each in (client, other) for _ in range(5)))
    assert (await spent(client))["owner:alice"] == 0.25


async def test_a_reservation_that_two_relays_have_read_is_charged_by_the_first_only(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await ended(client, ledger, "a", 0.25, owner="alice")
    read: bytes = store.hget(BudgetKeys(client.settings.namespace).reservations, turn_id)  # type: ignore[assignment]
    reserved = budget_admission._parse_reservation(turn_id, read.decode())
    for _ in range(2):
        await client.spending._charge_turn(reserved, 250_000, 1)
    assert (await spent(client))["owner:alice"] == 0.25


@pytest.mark.usefixtures("priced")
async def test_a_repeated_submit_sets_aside_once_and_after_the_end_nothing(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = client.submitter.create_turn_id()
    for _ in range(3):
        await client.submitter.submit(request(owner="alice", **ONE_RUN), turn_id=turn_id)
    assert (await spent(client))["owner:alice"] == 0.4
    ledger.commit_transition(claimed(ledger, turn_id), replace(PASSED, fields=progress(cost_used=100000)))
    await client.submitter.submit(request(owner="alice", **ONE_RUN), turn_id=turn_id)
    assert (await spent(client))["owner:alice"] == 0.1


@pytest.mark.usefixtures("priced")
async def test_a_turn_that_was_not_stored_costs_nothing(client: TurnsClient, ledger: Ledger) -> None:
    await client.submitter.submit(request(owner="alice", **ONE_RUN), idempotency_key="k")
    await client.submitter.submit(request(owner="alice", **ONE_RUN), idempotency_key="k")
    with pytest.raises(SessionBusy):
        await client.submitter.submit(request(owner="alice", double_text=DoubleText.REJECT, **ONE_RUN))
    assert (await spent(client))["owner:alice"] == 0.4


@pytest.mark.usefixtures("priced")
async def test_what_a_dead_relay_set_aside_comes_back(client: TurnsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.spending.hold([Submission(turn_id=new_turn_id(), request=request(owner="alice", **ONE_RUN))])
    assert (await spent(client))["owner:alice"] == 0.4
    monkeypatch.setattr(budget_admission, "_STORED_WITHIN_SECONDS", -1.0)
    assert (await spent(client))["owner:alice"] == 0.0


@pytest.mark.usefixtures("priced")
async def test_a_cancelled_turn_gives_back_what_was_set_aside(client: TurnsClient) -> None:
    turn_id = await client.submitter.submit(request(owner="alice", **ONE_RUN))
    await client.canceller.cancel(turn_id)
    assert (await spent(client))["owner:alice"] == 0.0


async def test_the_share_tells_when_a_budget_is_near(client: TurnsClient, ledger: Ledger) -> None:
    await ended(client, ledger, "a", 0.85, owner="alice")
    states = {each.scope: each.state for each in await client.spending.read_today()}
    assert (states["owner:alice"], states["all"]) == ("near", "ok")


async def test_without_budgets_nothing_is_written(settings: Settings, store: redis.Redis) -> None:
    async with TurnsClient(replace(settings, budgets={})) as client:
        await client.submitter.submit(request(owner="alice"))
        assert await client.spending.read_today() == []
    assert store.exists(BudgetKeys(settings.namespace).reservations) == 0


async def test_figures_by_owner_and_key_come_from_the_turns_that_ended(client: TurnsClient, ledger: Ledger) -> None:
    await ended(client, ledger, "a", 0.25, owner="alice", key="webui")
    await ended(client, ledger, "b", 0.5, owner="bob", key="webui")
    by_owner = {row.name: row.cost_usd for row in (await client.figures.read_stats(3600, "owner")).rows}  # type: ignore[union-attr]
    [by_key] = (await client.figures.read_stats(3600, "key")).rows
    assert by_owner == {"webui/bob": 0.5, "webui/alice": 0.25}
    assert (by_key.name, by_key.turns, by_key.passed, by_key.cost_usd) == ("webui", 2, 2, 0.75)  # type: ignore[union-attr]
