"""Suspended turns on a real store: who decides what, once, and what follows."""

from dataclasses import replace

import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest, TurnNotFound, TurnNotSuspended
from api_client.contract.escalation import Escalation
from api_client.contract.tasks import RESUME, ChainTask
from api_client.contract.turn import Outcome, Turn, TurnState
from tests.integration.engine import ADR, GOOD, NO_MARKER, Bench, says
from tests.support import wait_until

WHOLE_ADR = ADR.replace(
    "Text.", "Text.\n\n## Entscheidung\n\nRedis.\n\n## Akzeptanzkriterien\n\n- [ ] a\n- [ ] b\n- [ ] c"
)


async def decided(bench: Bench, turn: Turn, kind: str, **more: str) -> Turn:
    """Decide, and carry it out as Celery would."""
    await bench.client.inbox.decide_turn(turn.turn_id, kind, by="alice", **more)
    bench.carry_out(turn.turn_id, ChainTask(RESUME, turn.attempt))
    return await bench.client.reader.read_turn(turn.turn_id)


async def test_a_turn_whose_policy_escalates_is_suspended_held_by_nobody_and_listed(bench: Bench) -> None:
    turn = await bench.suspended()
    assert (turn.next, turn.lease_until, turn.outcome, turn.interruption.silence) == ("", 0, None, "reject")
    assert [found.turn_id for found in await bench.client.inbox.list_suspended()] == [turn.turn_id]
    assert await bench.client.inbox.list_suspended(owner="somebody else") == []
    kinds = [event.kind for event in await bench.client.reader.read_events(turn.turn_id)]
    assert kinds[-3:] == ["attempt.rejected", "turn.escalated", "turn.suspended"]


async def test_an_approved_answer_is_told_as_a_persons_and_published(bench: Bench) -> None:
    turn = await decided(bench, await bench.suspended(), "approve", note="passt")
    assert (turn.outcome, turn.response) == (Outcome.PASSED_BY_HUMAN, NO_MARKER)
    assert turn.decision.by == "alice"
    assert turn.decision.note == "passt"
    [response] = bench.settings.sessions_dir.rglob("output/response.md")
    assert response.read_text() == NO_MARKER
    assert await bench.client.inbox.list_suspended() == []
    [told] = [event.data for event in await bench.events(turn) if event.kind == "turn.decided"]
    assert (told["kind"], told["by"], told["note"]) == ("approve", "alice", "passt")


async def test_an_edited_answer_is_the_one_that_counts(bench: Bench) -> None:
    turn = await decided(bench, await bench.suspended(), "edit", text=GOOD)
    assert (turn.outcome, turn.response, turn.step) == (Outcome.PASSED_BY_HUMAN, GOOD, "done")


async def test_a_retry_asks_the_agent_again_with_the_note(bench: Bench) -> None:
    turn = await decided(bench, await bench.suspended(says(GOOD)), "retry", note="Denk an den Marker!")
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 2)
    assert "Denk an den Marker!" in bench.runner.orders[1].prompt


async def test_a_retry_that_fails_again_comes_back_to_the_inbox(bench: Bench) -> None:
    turn = await decided(bench, await bench.suspended(says(NO_MARKER)), "retry", note="Nochmal")
    assert (turn.state, turn.attempt) == (TurnState.SUSPENDED, 2)
    assert (await decided(bench, turn, "reject")).outcome is Outcome.FAILED


async def test_a_rejected_turn_fails_with_the_note_for_its_user(bench: Bench) -> None:
    turn = await decided(bench, await bench.suspended(), "reject", note="so nicht")
    assert (turn.outcome, turn.error.code, turn.response) == (Outcome.FAILED, "rejected", "")
    assert "so nicht" in turn.error.message


async def test_a_decision_is_taken_once_and_a_second_one_is_told_who_decided(bench: Bench) -> None:
    turn = await bench.suspended(says(NO_MARKER))
    for _ in range(2):
        await bench.client.inbox.decide_turn(turn.turn_id, "retry", by="alice", note="Nochmal", decision_id="one")
    with pytest.raises(TurnNotSuspended, match="alice decided retry before; it is ran"):
        await bench.client.inbox.decide_turn(turn.turn_id, "approve", by="bob")
    bench.carry_out(turn.turn_id, ChainTask(RESUME, 1))
    assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED
    await bench.client.inbox.decide_turn(turn.turn_id, "retry", by="alice", note="Nochmal", decision_id="one")
    assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED, (
        "a late repeat decided the second suspension"
    )


async def test_a_decision_is_known_by_its_whole_id_and_by_what_it_decides(bench: Bench) -> None:
    turn = await bench.suspended()
    await bench.client.inbox.decide_turn(turn.turn_id, "reject", by="bob", decision_id="one-rival")
    for decision_id, kind in (("one", "reject"), ("rival", "reject"), ("one-rival", "approve")):
        with pytest.raises(TurnNotSuspended, match="bob decided reject before"):
            await bench.client.inbox.decide_turn(turn.turn_id, kind, by="alice", decision_id=decision_id)
    await bench.client.inbox.decide_turn(turn.turn_id, "reject", by="bob", decision_id="one-rival")
    for wrong in ("one rival", "x" * 65, "ä"):
        with pytest.raises(BadRequest, match="decision_id"):
            await bench.client.inbox.decide_turn(turn.turn_id, "reject", by="bob", decision_id=wrong)


#: A character that cannot be stored, and ones that nobody sees.
_NO_TEXT = ("a\0b", "\u200b", "\u2060 ")


async def test_only_its_owner_decides_and_only_what_makes_sense(bench: Bench) -> None:
    turn = await bench.suspended()
    with pytest.raises(TurnNotFound):
        await bench.client.inbox.decide_turn(turn.turn_id, "approve", by="eve", owner="eve")
    wrong = [("bless", {}), ("retry", {}), ("edit", {}), ("approve", {"text": "x"}), ("approve", {"note": "\0"})]
    wrong += [(kind, {field: text}) for kind, field in (("retry", "note"), ("edit", "text")) for text in _NO_TEXT]
    wrong.append(("edit", {"text": "<!-- STEP: done -->"}))
    for kind, more in wrong:
        with pytest.raises(BadRequest):
            await bench.client.inbox.decide_turn(turn.turn_id, kind, by="alice", **more)
    assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED


@pytest.mark.parametrize(("default", "outcome"), [("reject", Outcome.FAILED), ("approve", Outcome.PASSED_BY_HUMAN)])
async def test_a_turn_nobody_decides_on_goes_by_its_default(bench: Bench, default: str, outcome: Outcome) -> None:
    turn = await bench.suspended(attached=Escalation(timeout_seconds=1.0, default=default).attached)
    found = await wait_until(
        lambda: (found := bench.ledger.reap_turn(turn.turn_id, may_take=True)).chain_task and found
    )
    bench.carry_out(turn.turn_id, ChainTask.parse(found.chain_task))
    ended = await bench.client.reader.read_turn(turn.turn_id)
    assert (ended.outcome, ended.decision.by) == (outcome, "timeout")
    assert outcome.success or ended.error.code == "undecided"


async def test_a_suspended_turn_that_is_looked_at_before_its_time_stays_where_it_is(bench: Bench) -> None:
    turn = await bench.suspended()
    bench.ledger.recall_turns()  # as after a clock that was set back
    assert bench.ledger.reap_turn(turn.turn_id, may_take=True).what == "suspended"
    assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED
    assert bench.ledger.list_due() == []


async def test_the_deadline_stands_still_while_a_turn_is_suspended(bench: Bench) -> None:
    turn = await bench.suspended(deadline_seconds=700.0)
    assert turn.deadline_at == pytest.approx(turn.created_at + 700 + 86_400, abs=1)
    again = await bench.client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
    assert again.deadline_at == pytest.approx(turn.created_at + 700, abs=600)


async def test_a_suspended_turn_can_be_cancelled_and_lets_the_session_go_on(bench: Bench) -> None:
    turn = await bench.suspended()
    following = await bench.submit(says(GOOD))
    assert (await bench.client.canceller.cancel(turn.turn_id)).outcome is Outcome.CANCELLED
    assert await bench.client.inbox.list_suspended() == []
    bench.carry_out(following)
    assert (await bench.client.reader.read_turn(following)).outcome is Outcome.PASSED
    with pytest.raises(TurnNotSuspended, match="it is cancelled"):
        await bench.client.inbox.decide_turn(turn.turn_id, "approve", by="alice")


async def test_another_model_is_asked_on_its_own_before_a_person_is(bench: Bench) -> None:
    models = {"scripted": "scripted", "expert": "scripted:expert"}
    bench.settings = replace(bench.settings, models=models)
    async with TurnsClient(bench.settings) as client:
        other = Bench(bench.settings, client)
        escalation = Escalation(model="expert", runs=1)
        turn = await other.outcome(
            says(ADR),
            says(WHOLE_ADR),
            policy={"adr_structure": ("retry", "escalate")},
            max_attempts=1,
            attached=escalation.attached,
        )
        other.leases.close()
        runs = {
            row.name: (row.runs, row.rejected, row.turns)
            for row in (await client.figures.read_stats(3600, "model")).rows
        }  # type: ignore[union-attr]
    assert runs == {"scripted": (1, 1, 1), "expert": (1, 0, 0)}, "each model has its own runs, and so its own cost"
    assert (turn.outcome, turn.stage, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 1, 2)
    asked = other.runner.orders[1]
    assert asked.prompt.startswith("Wie geht das?")
    assert "MISSING_ADR" in asked.prompt
    assert asked.agent_session == ""


async def test_another_model_that_answers_without_the_adr_is_no_pass_and_counts_for_the_content_guard(
    bench: Bench,
) -> None:
    async with TurnsClient(bench.settings) as client:
        other = Bench(bench.settings, client)
        turn = await other.outcome(
            says(ADR),
            says(GOOD),
            policy={"adr_structure": ("retry", "escalate")},
            max_attempts=1,
            attached=Escalation(model="scripted", runs=1).attached,
        )
        other.leases.close()
    assert turn.outcome is Outcome.FAILED


async def test_a_policy_that_orders_the_impossible_is_refused(bench: Bench) -> None:
    for policy in ({"spelling": ("retry",)}, {"step_marker": ("pray",)}, {"step_marker": ()}):
        with pytest.raises(BadRequest):
            await bench.submit(policy=policy)
    with pytest.raises(BadRequest, match="unknown model"):
        await bench.submit(attached=Escalation(model="oracle").attached)
