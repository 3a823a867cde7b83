"""A real Redis Cluster as store beside a plain broker is failed over and resharded; turns wait and continue."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.store.cluster import find_slot
from api_client.store.connecting import open_blocking_store, open_store
from api_client.store.connection import Connection
from tests.fault.clusters import ClusterSetUp
from tests.fault.conftest import Meeting, judged
from tests.installation import Installation, asked
from tests.support import wait_for, wait_until
from worker.cli.checks.broker import check_brokers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSetUp]:
    made = ClusterSetUp(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def on_cluster(cluster: ClusterSetUp, settings: Settings) -> Settings:
    """Provide settings of a namespace on the cluster."""
    return replace(settings, store_url=cluster.url)


@pytest.fixture
async def connection(on_cluster: Settings) -> AsyncIterator[Connection]:
    made = Connection(on_cluster)
    yield made
    await made.close()


@pytest.fixture
def held(on_cluster: Settings, installation: Installation, meeting: Meeting) -> Settings:
    """Provide an installation on the cluster, with a worker whose agent plays the script."""
    changes = {name: getattr(on_cluster, name) for name in ("store_url", "namespace")}
    made = installation.change(**changes, **meeting.settings())
    installation.worker(settings=made)
    return made


async def test_a_turn_goes_on_where_a_replica_takes_over_from_the_master_of_its_keys(
    cluster: ClusterSetUp, held: Settings, meeting: Meeting
) -> None:
    async with TurnsClient(held) as client:
        turn_id = await client.submitter.submit(asked("held"))
        await wait_until(lambda: meeting.begun)
        await wait_until(cluster.whole)
        killed = await wait_until(lambda: cluster.owner(held.namespace))
        cluster.signal(killed, signal.SIGKILL)
        await wait_until(lambda: cluster.owner(held.namespace) not in {0, killed})
        meeting.go()
        turn, _ = await judged(client, turn_id)
        assert (turn.outcome, turn.attempt, turn.strikes) == (Outcome.PASSED, 1, 0)
        assert len(meeting.runs()) == 1
        again = await client.submitter.submit(asked("quick", "after the fail-over"))
        assert (await client.reader.await_result(again, timeout=60)).outcome is Outcome.PASSED
    cluster.start(killed)
    await wait_until(cluster.whole)


@pytest.mark.parametrize("key_by_key", [False, True])
async def test_a_turn_goes_on_while_the_slot_of_its_keys_moves_to_another_master(
    cluster: ClusterSetUp, held: Settings, meeting: Meeting, key_by_key: bool
) -> None:
    async with TurnsClient(held) as client:
        turn_id = await client.submitter.submit(asked("held"))
        await wait_until(lambda: meeting.begun)
        before = await wait_until(lambda: cluster.owner(held.namespace))
        assert cluster.move(held.namespace, key_by_key=key_by_key) != before
        meeting.go()
        turn, _ = await judged(client, turn_id)
        assert (turn.outcome, turn.attempt, turn.strikes) == (Outcome.PASSED, 1, 0)
        assert len(meeting.runs()) == 1


async def test_a_slot_that_moved_is_a_lost_connection_and_the_next_goes_to_its_master(
    cluster: ClusterSetUp, on_cluster: Settings, connection: Connection
) -> None:
    key = Keys(on_cluster.namespace).written
    await connection.send_command("SET", key, "v")
    with open_blocking_store(on_cluster, resends=1) as blocking:
        assert blocking.get(key) == b"v"
        cluster.move(on_cluster.namespace)
        with pytest.raises(RedisConnectionError):
            await connection.send_command("GET", key)
        assert await connection.send_command("GET", key) == b"v"
        assert blocking.get(key) == b"v"


async def test_while_no_master_has_the_slot_a_client_learns_that_the_store_is_away(
    cluster: ClusterSetUp, on_cluster: Settings
) -> None:
    await wait_until(cluster.whole)
    owner = await wait_until(lambda: cluster.owner(on_cluster.namespace))
    number = find_slot(on_cluster.namespace)
    for port in cluster.ports:
        with suppress(ResponseError):  # a replica forgets with its master
            cluster.client(port).execute_command("CLUSTER", "DELSLOTS", number)
    async with TurnsClient(on_cluster) as client:
        with pytest.raises(StoreUnavailable):
            await client.store.send_command("GET", Keys(on_cluster.namespace).written)

        async def is_back() -> bool:
            with suppress(StoreUnavailable):
                return await client.store.send_command("GET", Keys(on_cluster.namespace).written) is None
            return False

        cluster.client(owner).execute_command("CLUSTER", "ADDSLOTS", number)
        await wait_until(is_back)
    await wait_until(lambda: cluster.owner(on_cluster.namespace))


def test_doctor_knows_a_cluster_and_says_where_the_keys_are(cluster: ClusterSetUp, on_cluster: Settings) -> None:
    wait_for(lambda: cluster.owner(on_cluster.namespace))
    found = {each.check: each for each in check_brokers(on_cluster)}
    assert found["store"].state == found["store mode"].state == "ok"
    assert f"slot {find_slot(on_cluster.namespace)}" in found["store mode"].message
    by_node = replace(on_cluster, store_url=f"redis://127.0.0.1:{cluster.owner(on_cluster.namespace)}")
    assert found["store node timeout"].state == "ok"
    slow = {each.check: each for each in check_brokers(replace(on_cluster, lease_seconds=3.0))}["store node timeout"]
    assert (slow.state, "HELIX_LEASE_SECONDS" in slow.fix) == ("warning", True)
    [wrong] = [each for each in check_brokers(by_node) if each.check == "store mode"]
    assert (wrong.state, "redis+cluster://" in wrong.fix) == ("wrong", True)


def test_a_user_without_config_is_enough_and_doctor_names_what_it_did_not_read(
    cluster: ClusterSetUp, on_cluster: Settings
) -> None:
    for port in cluster.ports:
        cluster.client(port).acl_setuser("app", enabled=True, passwords=["+geheim"], keys=["*"], channels=["*"])
        cluster.client(port).execute_command("ACL", "SETUSER", "app", "+@all", "-@admin", "-@dangerous", "+info")
        cluster.client(port).execute_command("ACL", "SETUSER", "app", "+cluster|slots", "+cluster|info")
    user = replace(on_cluster, store_url=cluster.url.replace("://", "://app:geheim@"))
    wait_for(lambda: cluster.owner(on_cluster.namespace))
    found = {each.check: each for each in check_brokers(user)}
    assert found["store"].state == "ok"
    assert "appendfsync" in found["store settings"].message


def test_credentials_come_from_the_provider_that_the_address_names(cluster: ClusterSetUp, on_cluster: Settings) -> None:
    for port in cluster.ports:
        cluster.client(port).acl_setuser(
            "iam", enabled=True, passwords=["+token"], keys=["*"], channels=["*"], commands=["+@all"]
        )
    url = f"{cluster.url}?credential_provider={__name__}.Provider"
    wait_for(lambda: cluster.owner(on_cluster.namespace))
    with open_blocking_store(replace(on_cluster, store_url=url)) as store:
        assert store.acl_whoami() == "iam"
    asyncio.run(_whoami(replace(on_cluster, store_url=url)))


async def _whoami(settings: Settings) -> None:
    async with open_store(settings) as store:
        assert await store.acl_whoami() == "iam"


class Provider(CredentialProvider):
    """A credential provider as a cloud's library supplies it to redis-py."""

    def get_credentials(self) -> tuple[str, str]:
        return "iam", "token"
