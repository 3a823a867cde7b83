"""Leases beside the loop that does the work: a busy one costs nobody a turn, one that stands still loses its turns."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import keys_for_turn
from api_client.contract.settings import Settings
from tests.integration.lua.by_hand import claimed, request
from tests.on_loop import Ledger
from tests.support import WAIT_SECONDS, wait_until
from worker.turns.leases import lease as leases
from worker.turns.leases.lease import LOOP_SECONDS, Lease, LeaseKeeper
from worker.turns.loops.loop import Loop

#: Renewed every quarter of it.
LEASE_SECONDS = 6.0


@contextmanager
def busy(loop: Loop) -> Iterator[None]:
    """The loop does one thing all the time, and looks after nothing else."""
    begun, over = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        over.wait(2 * WAIT_SECONDS)

    loop.start_work(work)
    begun.wait()
    try:
        yield
    finally:
        over.set()


@pytest.fixture
async def held(settings: Settings, client: TurnsClient) -> AsyncIterator[tuple[Lease, Loop]]:
    """A lease in a process whose loop turns."""
    settings = replace(settings, lease_seconds=LEASE_SECONDS)
    keeper = LeaseKeeper(settings, "worker-1")
    loop = Loop(keeper.note_loop_turn)
    loop.start()
    keeper.start()
    claim = claimed(Ledger(settings, "worker-1"), await client.submitter.submit(request()))
    with keeper.hold_lease(claim) as made:
        yield made, loop
    keeper.close()
    loop.close()


@pytest.fixture
def leased_until(settings: Settings, store: redis.Redis, held: tuple[Lease, Loop]) -> Callable[[], int]:
    """Until when the store has the turn as held, in ms."""
    turn_id = held[0].claim.turn.turn_id
    name = keys_for_turn(settings.namespace, turn_id).turn(turn_id)
    return lambda: int(store.hget(name, "lease_until") or 0)


async def test_a_busy_loop_fences_nobody(
    held: tuple[Lease, Loop], leased_until: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LOOP_SECONDS == 10.0, "as the documents say"
    monkeypatch.setattr(leases, "LOOP_SECONDS", 3600.0)  # whatever the machine does meanwhile
    lease, loop = held
    with busy(loop):
        begun = leased_until()
        await wait_until(lambda: leased_until() > begun + 1000 * LEASE_SECONDS / 3)
        assert lease.reason == "", "its turn is kept, twice by now"


async def test_a_loop_that_stands_still_for_too_long_loses_its_turns(
    held: tuple[Lease, Loop], leased_until: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, loop = held
    with busy(loop):
        monkeypatch.setattr(leases, "LOOP_SECONDS", 1.0)
        await wait_until(lambda: lease.reason == "fenced")
        kept = leased_until()
    await wait_until(lambda: leased_until() > kept)
    assert lease.reason == "fenced", "the loop turns again, but its agent was stopped"
