"""Equipment of runs: it changes the order, may suspend or abort the run, and ends with it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.completion import Completion, Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.interruption import Interruption
from api_client.contract.turn import Outcome, TurnState
from tests.integration.engine import GOOD, Bench, says, waits_for_stop
from tests.support import wait_for
from worker.runners.base import SUSPENDED, AgentEvent, Emit, Order, RunResult, Stop
from worker.turns import agent_run
from worker.turns.run_equipment import EquipmentContext, RunEquipment

Enter = Callable[[Order, EquipmentContext], Order]


class Equipment(RunEquipment):
    """Does what a test says at the beginning of each run, and counts the runs that are open."""

    def __init__(self, enter: Enter) -> None:
        self.enter, self.open = enter, 0

    @contextlib.asynccontextmanager
    async def equip_run(self, order: Order, context: EquipmentContext) -> AsyncIterator[Order]:
        self.open += 1
        try:
            yield self.enter(order, context)
        finally:
            self.open -= 1
            context.control.evidence["equipment"] = "seen"


def install(monkeypatch: pytest.MonkeyPatch, enter: Enter) -> Equipment:
    made = Equipment(enter)
    monkeypatch.setattr(agent_run, "load_equipment", lambda: (made,))
    return made


async def test_equipment_changes_the_order_reports_and_leaves_evidence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(order: Order, context: EquipmentContext) -> Order:
        context.control.report_event(AgentEvent(kind="note", text="equipped"))
        return replace(order, prompt="another")

    made = install(monkeypatch, enter)
    turn = await bench.outcome(says(GOOD))
    (attempt,) = await bench.client.reader.read_attempts(turn.turn_id)
    assert (turn.outcome, bench.runner.orders[0].prompt, made.open) == (Outcome.PASSED, "another", 0)
    assert attempt.completion["evidence"]["equipment"] == "seen"
    assert "equipped" in str([event.body for event in await bench.events(turn)])


async def test_equipment_suspends_a_run_whose_agent_would_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Interruption(kind="parcel", asked={"number": 1}, reason="parcel")

    def enter(order: Order, context: EquipmentContext) -> Order:
        context.control.suspend_run(asked)
        context.control.suspend_run(replace(asked, reason="second"))
        return order

    made = install(monkeypatch, enter)
    turn = await bench.outcome(waits_for_stop)
    assert (turn.state, turn.interruption, made.open) == (TurnState.SUSPENDED, replace(asked, delivery=1), 0)


async def test_an_aborted_run_is_delivered_again_and_uses_up_no_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(order: Order, context: EquipmentContext) -> Order:
        if order.delivery == 1:
            context.control.abort_run("its gateway died")
        return order

    install(monkeypatch, enter)
    turn = await bench.outcome(waits_for_stop, says(GOOD))
    assert (turn.state, turn.transients, turn.attempt) == (TurnState.QUEUED, 1, 1)
    assert "its gateway died" in str(await bench.client.reader.read_events(turn.turn_id))


@pytest.mark.parametrize(("error", "outcome"), [(SettingsError(["no key"]), Outcome.ERROR), (OSError("no"), None)])
async def test_equipment_that_cannot_begin_is_the_runs_result(
    error: Exception, outcome: Outcome | None, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(order: Order, context: EquipmentContext) -> Order:
        raise error

    install(monkeypatch, enter)
    turn = await bench.outcome(says(GOOD))
    assert (turn.outcome, turn.transients, bench.runner.orders) == (outcome, int(outcome is None), [])


async def test_a_cancelled_run_is_cancelled_whatever_equipment_asks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    control: list[Any] = []

    def enter(order: Order, context: EquipmentContext) -> Order:
        control.append(context.control)
        return order

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        control[0]._lease.request_stop("cancelled")
        control[0].suspend_run(Interruption(kind="parcel"))
        wait_for(lambda: stop.reason == "cancelled")
        assert stop.reason != SUSPENDED
        return RunResult(completion=Completion(verdict=Verdict.CANCELLED, reason="cancelled"))

    install(monkeypatch, enter)
    assert (await bench.outcome(play)).outcome is Outcome.CANCELLED
