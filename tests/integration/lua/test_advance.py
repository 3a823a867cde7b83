"""A holder goes on with the next link under the token it has: commit and claim in one command."""

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.keys import Keys
from api_client.contract.tasks import RETRY, VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnState
from api_client.turns.record.claim import ClaimRefusal, CommitResult, LeaseClaim, LeaseLost
from api_client.turns.record.transition import Transition, attempt_facts, progress
from tests.integration.lua.by_hand import PASSED, claimed, log_of, request
from tests.on_loop import Ledger
from tests.support import wait_until

RAN = Transition(attempt=1, next=ChainTask(VALIDATE, 1), facts=attempt_facts(text="Ja."), run_ended=True)
AGAIN = Transition(
    attempt=1, next=ChainTask(RETRY, 2), state=TurnState.QUEUED, fields=progress(retries=1), validated=True
)


async def test_a_turn_goes_from_link_to_link_under_one_token_and_ends_once(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    run = claimed(ledger, turn_id)
    judging = advanced(ledger, run, RAN)
    assert (judging.chain_task, judging.token, judging.turn.state) == (
        ChainTask(VALIDATE, 1),
        run.token,
        TurnState.VALIDATING,
    )
    again = advanced(ledger, judging, AGAIN)
    assert (again.chain_task, again.turn.state) == (ChainTask(RETRY, 2), TurnState.RUNNING)
    assert (again.turn.attempt, again.turn.delivery, again.turn.retries, again.turn.next) == (2, 2, 1, "turn.retry/2")
    assert ledger.commit_transition(again, PASSED) == CommitResult("", "passed")
    assert [event.kind for event in await log_of(client, turn_id)] == [
        *("turn.queued", "attempt.started", "attempt.started", "turn.finished")
    ]
    assert [attempt.deliveries for attempt in await client.reader.read_attempts(turn_id)] == [1, 1]


async def test_an_advance_whose_reply_was_lost_is_answered_not_repeated(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    judging = advanced(ledger, claimed(ledger, turn_id), RAN)
    command = next(ledger._changes.commit_transition(judging, AGAIN, 0.0, keep=True))
    once, again = ledger._send_command(command), ledger._send_command(command)
    assert once.chain_task == again.chain_task == ChainTask(RETRY, 2)
    assert once.turn.delivery == again.turn.delivery == 2
    assert (await client.reader.read_turn(turn_id)).seq == 3


async def test_nobody_else_can_claim_the_next_link_and_a_reaper_announces_it_when_the_holder_dies(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request())
    late = advanced(ledger, claimed(ledger, turn_id), RAN)
    assert ledger.claim_turn(turn_id, "s-1", ChainTask(VALIDATE, 1)) == ClaimRefusal("held")
    await wait_until(
        lambda: (found := ledger.reap_turn(turn_id, may_take=True)).what == "announce" and found.chain_task
    )
    assert ledger.next_task(turn_id) == ChainTask(VALIDATE, 1)
    with pytest.raises(LeaseLost):
        ledger.commit_transition(late, AGAIN, keep=True)
    assert claimed(ledger, turn_id, ChainTask(VALIDATE, 1)).turn.strikes == 1


async def test_going_on_keeps_the_lease_from_now_on(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    run = claimed(ledger, turn_id)
    judging = advanced(ledger, run, RAN)
    assert judging.turn.lease_until >= run.turn.lease_until
    assert judging.taken_at >= run.taken_at
    assert ledger.renew_lease(judging) == ""


async def test_a_cancel_ends_the_turn_where_its_holder_would_have_gone_on(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    run = claimed(ledger, turn_id)
    await client.canceller.cancel(turn_id)
    assert ledger.commit_transition(run, RAN, keep=True) == CommitResult("", "cancelled")
    with pytest.raises(LeaseLost):
        ledger.renew_lease(run)


async def test_a_spent_budget_lets_an_answer_be_judged_but_no_agent_run_again(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request(cost_limit_usd=0.5))
    spent = Transition(attempt=1, next=ChainTask(VALIDATE, 1), fields=progress(cost_used=600000))
    judging = advanced(ledger, claimed(ledger, turn_id), spent)
    assert ledger.commit_transition(judging, AGAIN, keep=True) == CommitResult("", "expired")


async def test_a_delay_gives_the_turn_back(client: TurnsClient, ledger: Ledger) -> None:
    turn_id = await client.submitter.submit(request())
    delayed = Transition(attempt=1, next=ChainTask(VALIDATE, 1), delay_ms=60_000)
    assert ledger.commit_transition(claimed(ledger, turn_id), delayed, keep=True) == CommitResult("", "")
    assert ledger.claim_turn(turn_id, "s-1", ChainTask(VALIDATE, 1)) == ClaimRefusal("early")


async def test_what_a_store_forgot_of_a_holder_that_went_on_is_done_again_link_by_link(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    """As after a loss of power: the store is what it was before two answered links."""
    turn_id = await client.submitter.submit(request())
    run = claimed(ledger, turn_id)
    ledger.append_events(run, [AttemptOutput(attempt=1, text="Ja.")])
    keys = Keys(client.settings.namespace)
    names = [name for name in store.keys(f"{keys.turn(turn_id)}*") if store.type(name) != b"none"]
    before = {name: store.dump(name) for name in names}
    again = advanced(ledger, advanced(ledger, run, RAN), AGAIN)
    for name in store.keys(f"{keys.turn(turn_id)}*"):
        store.delete(name)
    for name, content in before.items():
        store.restore(name, 0, content)
    ledger.append_events(again, [AttemptOutput(attempt=2, text="Doch.")])
    turn = await client.reader.read_turn(turn_id)
    assert (turn.state, turn.next, turn.delivery, turn.retries) == (TurnState.RUNNING, "turn.retry/2", 2, 1)
    ledger.commit_transition(again, PASSED)
    assert (await client.reader.read_turn(turn_id)).outcome is Outcome.PASSED
    kinds = [(event.kind, event.data.get("text")) for event in await log_of(client, turn_id)]
    assert kinds == [
        ("turn.queued", None),
        ("attempt.started", None),
        ("attempt.output", "Ja."),
        ("attempt.started", None),
        ("attempt.output", "Doch."),
        ("turn.finished", None),
    ]
    assert [attempt.text for attempt in await client.reader.read_attempts(turn_id)] == ["Ja.", ""]


def advanced(ledger: Ledger, claim: LeaseClaim, transition: Transition) -> LeaseClaim:
    taken = ledger.commit_transition(claim, transition, keep=True)
    assert isinstance(taken, LeaseClaim), taken
    return taken
