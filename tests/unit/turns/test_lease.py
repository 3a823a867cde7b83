"""A lease by its holder's own clock: how long a turn is surely ours, and what is read when it is no longer."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from api_client.contract.tasks import RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.turns.leases.lease import Lease
from worker.turns.record.claim import Claim

SECONDS = 8.0


class Clock:
    """``time.monotonic()``, as the test wants it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Store:
    """A ledger that confirms every claim, and counts how often it was asked."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked = 0

    async def confirm(self, _claim: Claim) -> float:
        self.asked += 1
        return self.clock.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("worker.turns.leases.lease.time", SimpleNamespace(monotonic=made, time=time.time))
    return made


def lease(clock: Clock, *, deadline: float = 3600.0) -> Lease:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="t0-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    return Lease(Claim(turn, Link(RUN, 1), "token", clock.now, deadline), SECONDS, clock.now + deadline)


def test_a_holder_stops_a_quarter_of_the_lease_before_others_may_take_the_turn(clock: Clock) -> None:
    held = lease(clock)
    assert held.lease_ends == clock.now + 0.75 * SECONDS
    clock.now += 0.75 * SECONDS
    assert held.reason == ""
    clock.now += 0.01
    assert (held.lapsed, held.reason) == (True, "fenced")


def test_a_beat_counts_from_when_it_was_sent_and_brings_no_stopped_run_back(clock: Clock) -> None:
    held = lease(clock)
    held.acknowledge(clock.now + 1)
    assert held.lease_ends == clock.now + 1 + 0.75 * SECONDS
    clock.now += SECONDS
    assert held.reason == "fenced"
    held.acknowledge(clock.now)
    assert (held.lapsed, held.reason) == (False, "fenced"), "its agent is being stopped"


def test_a_lost_lease_overrules_any_other_reason_and_nothing_overrules_it(clock: Clock) -> None:
    held = lease(clock)
    for reason, known in (("cancelled", "cancelled"), ("shutdown", "cancelled"), ("fenced", "fenced")):
        held.stop(reason)
        assert held.reason == known
    held.stop("cancelled")
    assert held.reason == "fenced"


def test_the_deadline_stops_a_run_and_the_next_link_has_what_is_left_of_it(clock: Clock) -> None:
    held = lease(clock, deadline=3.0)
    held.go_on(Claim(held.claim.turn, Link(RUN, 2), "token", clock.now + 1, 1.5))
    assert (held.went_on, held.deadline, held.lease_ends) == (True, clock.now + 2.5, clock.now + 1 + 0.75 * SECONDS)
    clock.now += 2.6
    assert held.reason == "expired"


async def test_after_a_freeze_the_store_is_asked_before_anything_is_touched_and_not_otherwise(clock: Clock) -> None:
    held, store = lease(clock), Store(clock)
    ledger: Any = store
    await held.confirm(ledger)
    assert store.asked == 0
    clock.now += SECONDS
    await held.confirm(ledger)
    assert (store.asked, held.lapsed) == (1, False)
