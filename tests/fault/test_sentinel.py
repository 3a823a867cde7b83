"""A real Sentinel set-up of the same binary: the master is killed, a replica takes over, and the turn continues.

Replication is asynchronous: what the replica had not received when the master died is lost (docs/reliability.md). The
test waits for the replica before the kill, so it judges the fail-over, not luck.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.settings.sentinels import SentinelAddress
from api_client.contract.turn import Outcome
from tests.fault.conftest import Meeting, judged
from tests.fault.sentinels import SentinelSetUp
from tests.installation import Installation, asked
from tests.support import wait_for, wait_until
from worker.turns.leases.replica_watch import ReplicaWatch
from worker.turns.loops.polling_loop import PollingLoop


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSetUp]:
    """Provide one set-up for all tests; the test that kills its master comes last."""
    made = SentinelSetUp(tmp_path_factory.mktemp("sentinel"), options=("--repl-diskless-sync-delay", "0"))
    yield made
    made.stop()


@pytest.fixture
def replicated(set_up: SentinelSetUp, settings: Settings) -> Settings:
    wait_for(lambda: set_up.in_step(set_up.ports[0]) == 1)
    return replace(settings, store_url=set_up.url, broker_url=set_up.url, durability="replicated")


async def test_replicated_acknowledges_a_submit_only_when_a_replica_has_it(
    set_up: SentinelSetUp, replicated: Settings
) -> None:
    _, replica = set_up.ports
    async with TurnsClient(replicated) as client:
        turn_id = await client.submitter.submit(asked("quick"))
        assert set_up.client(replica).exists(keys_for_turn(replicated.namespace, turn_id).turn(turn_id))
        set_up.signal(replica, signal.SIGSTOP)
        other = client.submitter.create_turn_id()
        with pytest.raises(StoreUnavailable, match="too few replicas confirmed the write"):
            await client.submitter.submit(asked("quick", "other"), turn_id=other)
        set_up.signal(replica, signal.SIGCONT)
        assert await client.submitter.submit(asked("quick", "other"), turn_id=other) == other, "the repeat finds it"


async def test_replicated_shows_an_end_only_when_a_replica_has_it(set_up: SentinelSetUp, replicated: Settings) -> None:
    _, replica = set_up.ports
    async with TurnsClient(replicated) as client, TurnsClient(replicated) as other:
        turn_id = await client.submitter.submit(asked("quick"))
        set_up.signal(replica, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match="too few replicas confirmed the write"):
            await client.canceller.cancel(turn_id)
        with pytest.raises(StoreUnavailable, match="too few replicas confirmed the write"):
            await other.reader.read_turn(turn_id)
        with pytest.raises(StoreUnavailable, match="too few replicas confirmed the write"):
            await other.reader.await_result(turn_id)
        set_up.signal(replica, signal.SIGCONT)
        assert (await other.reader.read_turn(turn_id)).outcome is Outcome.CANCELLED


async def test_a_confirmation_whose_connection_broke_is_asked_for_again_with_its_write(
    set_up: SentinelSetUp, replicated: Settings
) -> None:
    """A bare WAIT on a new connection, which has written nothing, is answered at once, whatever replicas have."""
    first, replica = set_up.ports
    async with TurnsClient(replicated) as client:
        turn_id = await client.submitter.submit(asked("quick"))
        set_up.signal(replica, signal.SIGSTOP)
        settling = asyncio.create_task(client.store.await_durability(turn_id, 1))
        server = set_up.client(first)
        await wait_until(lambda: int(server.info("clients")["blocked_clients"]))
        [blocked] = [one["id"] for one in server.client_list() if "b" in one["flags"]]
        server.client_kill_filter(_id=blocked)
        with pytest.raises(StoreUnavailable, match="too few replicas confirmed the write"):
            await settling
        set_up.signal(replica, signal.SIGCONT)


async def test_a_turn_that_a_fail_over_lost_is_not_acknowledged_by_the_server_that_took_over(
    set_up: SentinelSetUp, replicated: Settings
) -> None:
    async with TurnsClient(replicated) as client:
        with pytest.raises(StoreUnavailable, match="lost it"):
            await client.store.await_durability(client.submitter.create_turn_id(), 1)


async def test_who_acknowledges_may_not_be_promoted_again_and_replicas_may_once_they_are_in_step(
    set_up: SentinelSetUp, replicated: Settings
) -> None:
    first, replica = set_up.ports
    set_up.client(replica).config_set("replica-priority", 0)
    watch = PollingLoop([ReplicaWatch(replicated)])
    watch.start()
    try:
        async with TurnsClient(replicated) as client:
            await client.submitter.submit(asked("quick"))
            assert set_up.client(first).config_get("replica-priority") == {"replica-priority": "0"}
        await wait_until(lambda: set_up.client(replica).config_get("replica-priority") == {"replica-priority": "100"})
        set_up.client(replica).replicaof("127.0.0.1", 1)  # a master that is not there
        await wait_until(lambda: set_up.client(replica).config_get("replica-priority") == {"replica-priority": "0"})
        set_up.client(replica).replicaof("127.0.0.1", first)
        await wait_until(lambda: set_up.in_step(first) == 1)
    finally:
        watch.close()


async def test_as_many_replicas_as_are_asked_for_confirm(set_up: SentinelSetUp, replicated: Settings) -> None:
    async with TurnsClient(replace(replicated, replicas=2)) as client:
        with pytest.raises(StoreUnavailable, match="too few replicas"):
            await client.submitter.submit(asked("quick"))


async def test_a_turn_survives_the_fail_over_of_its_store_and_broker(
    set_up: SentinelSetUp, installation: Installation, meeting: Meeting
) -> None:
    scripted = installation.change(store_url=set_up.url, broker_url=set_up.url, lease_seconds=1.5, **meeting.settings())
    installation.worker(settings=scripted)
    async with TurnsClient(scripted) as client:
        turn_id = await client.submitter.submit(asked("held"))
        await wait_until(lambda: meeting.begun)
        first, replica = set_up.ports
        await wait_until(lambda: set_up.client(first).execute_command("WAIT", 1, 2000))
        set_up.signal(first, signal.SIGKILL)
        await wait_until(lambda: set_up.master() == replica)
        meeting.go()
        turn, _ = await judged(client, turn_id)
        assert (turn.outcome, turn.attempt) == (Outcome.PASSED, 1)
        again = await client.submitter.submit(asked("quick", "after the fail-over"))
        assert (await client.reader.await_result(again, timeout=60)).outcome is Outcome.PASSED


def test_an_address_names_nodes_master_and_database() -> None:
    found = SentinelAddress.parse("sentinel://:geheim@a:1,b:2/turns/3")
    assert found == SentinelAddress((("a", 1), ("b", 2)), "turns", 3, "geheim")
    assert SentinelAddress.parse("redis://a:1/0") is None
    for bad in ("sentinel://a:1", "sentinel:///turns", "sentinel://a/turns", "sentinel://a:x/turns"):
        with pytest.raises(ValueError, match="sentinel://host"):
            SentinelAddress.parse(bad)
