"""The engine's threads outlive what goes wrong in them, and none of them keeps it to itself."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from redis.exceptions import ReadOnlyError

from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from tests.support import wait_for
from worker.runners.base import AgentEvent
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.leases.reaper import Reaper, Watch
from worker.turns.record.claim import Claim
from worker.turns.writer import EventWriter

#: Nobody listens there, and nobody asks: what would ask is replaced.
SETTINGS = Settings(store_url="redis://127.0.0.1:1/0", lease_seconds=0.5, reap_seconds=0.05)


def claimed() -> Claim:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="t0-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    return Claim(turn, Link(RUN, 1), "token", time.monotonic(), 60.0)


@pytest.mark.parametrize("fault", [ReadOnlyError("no"), ValueError("damaged"), RuntimeError("a fault of ours")])
def test_a_reaper_that_fails_looks_again(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    reaper, looks = Reaper(SETTINGS, "w", lambda *_: None), itertools.count(1)
    seen = 0

    def look() -> None:
        nonlocal seen
        seen = next(looks)
        raise fault

    monkeypatch.setattr(reaper, "look", look)
    reaper.start()
    wait_for(lambda: seen > 2)
    reaper.close()


def test_a_lease_that_cannot_be_kept_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = LeaseKeeper(SETTINGS, "w")
    beaten: list[str] = []

    def beat(claim: Claim) -> str:
        beaten.append(claim.token)
        if claim.token == "token":
            raise RuntimeError("a fault of ours")
        return ""

    monkeypatch.setattr(keeper._ledger, "beat", beat)
    keeper.start()
    other = claimed()
    other.token = "other"
    with keeper.hold(claimed()), keeper.hold(other):
        wait_for(lambda: beaten.count("other") > 2)
    keeper.close()


def test_a_turn_that_was_claimed_just_before_all_were_told_to_stop_stops_too() -> None:
    keeper = LeaseKeeper(SETTINGS, "w")
    with keeper.hold(claimed()) as held:
        keeper.stop_all("shutdown")
    with keeper.hold(claimed()) as late:
        assert (held.reason, late.reason) == ("shutdown", "shutdown")


def test_a_run_whose_log_cannot_be_written_does_not_count() -> None:
    class Broken:
        def append(self, *_: Any) -> None:
            raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"), EventWriter(Broken(), claimed()) as writer:  # type: ignore[arg-type]
        writer.emit(AgentEvent(kind="output", text="x"))


def test_after_a_time_without_writes_holders_get_a_lease_to_beat_first() -> None:
    watch = Watch(lease_seconds=2, reap_seconds=1)
    assert [watch.look(at, at) for at in (0, 1, 2)] == [False, False, True]
    watch.lost()
    assert [watch.look(at, at) for at in (3, 4, 5)] == [False, False, True]


def test_a_clock_set_back_while_the_store_was_away_is_noticed() -> None:
    watch = Watch(lease_seconds=2, reap_seconds=1)
    watch.look(0, 1000)
    watch.lost()
    watch.look(1, 900)
    assert watch.jumped_back
