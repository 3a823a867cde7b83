"""The engine's threads outlive what goes wrong in them, and none of them keeps it to itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import Any

import pytest
import structlog
from redis.exceptions import ReadOnlyError

from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from tests.support import wait_for
from worker.runners.base import AgentEvent
from worker.turns.leases import lease
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.leases.reaper import Reaper
from worker.turns.loops.watching import Watch
from worker.turns.record.claim import Claim
from worker.turns.writer import EventWriter

#: Nobody listens there, and nobody asks: what would ask is replaced.
SETTINGS = Settings(
    store_url="redis://127.0.0.1:1/0", broker_url="redis://127.0.0.1:1/0", lease_seconds=0.5, reap_seconds=0.05
)


def claimed() -> Claim:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="t0-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    return Claim(turn, Link(RUN, 1), "token", time.monotonic(), 60.0)


@pytest.mark.parametrize("fault", [ReadOnlyError("no"), ValueError("damaged"), RuntimeError("a fault of ours")])
def test_a_reaper_that_fails_looks_again(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    reaper, looks = Reaper(SETTINGS, "w", lambda *_: None), itertools.count(1)
    seen = 0

    async def look() -> None:
        nonlocal seen
        seen = next(looks)
        raise fault

    monkeypatch.setattr(reaper, "poll", look)
    watch = Watch([reaper])
    watch.start()
    wait_for(lambda: seen > 2)
    watch.close()


def keeper_of(monkeypatch: pytest.MonkeyPatch, renew: Any) -> LeaseKeeper:
    keeper = LeaseKeeper(SETTINGS, "w")
    monkeypatch.setattr(keeper._beats, "renew", renew)
    return keeper


def test_a_round_that_fails_ends_neither_the_thread_nor_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = itertools.count(1)
    seen = 0

    def renew(claims: list[Claim]) -> dict[str, tuple[str, str]]:
        nonlocal seen
        seen = next(rounds)
        if seen % 2:
            raise RuntimeError("a fault of ours")
        return {claim.token: ("held", "") for claim in claims}

    keeper = keeper_of(monkeypatch, renew)
    keeper.start()
    with keeper.hold(claimed()):
        wait_for(lambda: seen > 4)
    keeper.close()


def test_of_one_round_each_lease_learns_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"held": ("held", ""), "lost": ("fenced", ""), "called off": ("held", "cancelled"), "odd": ("damaged", "")}
    keeper = keeper_of(monkeypatch, lambda claims: said)
    claims = []
    for token in said:
        claim = claimed()
        claim.token = token
        claims.append(claim)
    with contextlib.ExitStack() as stack:
        leases = {claim.token: stack.enter_context(keeper.hold(claim)) for claim in claims}
        before = {token: lease.lease_ends for token, lease in leases.items()}
        keeper._renew([*leases.values()], time.monotonic())
        assert {token: lease.reason for token, lease in leases.items()} == {
            "held": "",
            "lost": "fenced",
            "called off": "cancelled",
            "odd": "",
        }
        kept = {token for token, lease in leases.items() if lease.lease_ends > before[token]}
        assert kept == {"held", "called off"}


def test_a_turn_that_its_holder_is_giving_back_is_not_reported_as_lost_and_one_that_went_on_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = keeper_of(monkeypatch, lambda claims: {claim.token: ("fenced", "") for claim in claims})
    with keeper.hold(claimed()) as held, structlog.testing.capture_logs() as logged:
        held.giving_back = True
        keeper._renew([held], time.monotonic())
        assert (logged, held.reason) == ([], "")
        held.go_on(claimed())
        keeper._renew([held], time.monotonic())
        assert ([line["event"] for line in logged], held.reason) == (["lease.fenced"], "fenced")


def test_leases_are_kept_no_more_when_the_main_loop_is_stuck_and_again_when_it_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def renew(claims: list[Claim]) -> dict[str, tuple[str, str]]:
        asked.append(len(claims))
        return {claim.token: ("held", "") for claim in claims}

    keeper = keeper_of(monkeypatch, renew)
    with keeper.hold(claimed()) as held:
        assert keeper._loop_turns(), "nothing was ever heard of a main loop: there is none to wait for"
        keeper.turned()
        assert keeper._loop_turns()
        monkeypatch.setattr(lease, "LOOP_SECONDS", -1.0)  # it has not turned for longer than that
        keeper.start()
        wait_for(lambda: held.reason == "fenced")
        assert not asked, "no lease was renewed while the loop was stuck"
        monkeypatch.setattr(lease, "LOOP_SECONDS", 3600.0)
        wait_for(lambda: asked)
    keeper.close()


def test_a_turn_that_was_claimed_just_before_all_were_told_to_stop_stops_too() -> None:
    keeper = LeaseKeeper(SETTINGS, "w")
    with keeper.hold(claimed()) as held:
        keeper.stop_all("shutdown")
    with keeper.hold(claimed()) as late:
        assert (held.reason, late.reason) == ("shutdown", "shutdown")


async def test_a_run_whose_log_cannot_be_written_does_not_count() -> None:
    class Broken:
        async def append(self, *_: Any) -> None:
            raise RuntimeError("a fault of ours")

    writer = EventWriter(Broken(), claimed())
    writer.emit(AgentEvent(kind="output", text="x"))
    for _ in range(2):
        await asyncio.sleep(0)  # it was sent; what was not would go with the commit
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await writer.close()
