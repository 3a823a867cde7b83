"""One command renews the leases of many turns, each by its own token."""

from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.exceptions import ReadOnlyError

from api_client.client import TurnsClient
from api_client.contract.keys import keys_for_turn
from api_client.contract.settings import Settings
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.lease_renewal import LeaseRenewal
from tests.integration.lua.by_hand import FIRST, claimed, request
from tests.on_loop import Ledger


async def held(client: TurnsClient, settings: Settings, count: int) -> list[LeaseClaim]:
    ledger = Ledger(settings, "worker-1")
    ids = [await client.submitter.submit(request(session_id=f"s-{number}")) for number in range(count)]
    return [claimed(ledger, turn_id, FIRST, f"s-{number}") for number, turn_id in enumerate(ids)]


async def test_each_lease_is_renewed_told_of_a_cancel_or_fenced_on_its_own(
    client: TurnsClient, settings: Settings, store: redis.Redis
) -> None:
    kept, lost, stopped, damaged, missing = claims = await held(client, settings, 5)
    keys = [keys_for_turn(settings.namespace, claim.turn.turn_id) for claim in claims]
    names = [key.turn(claim.turn.turn_id) for key, claim in zip(keys, claims, strict=True)]
    lost.token = "somebody else's"
    await client.canceller.cancel(stopped.turn.turn_id)
    store.delete(names[3], names[4])
    store.set(names[3], "not a hash")
    store.hset(names[0], "lease_until", 0)
    store.zadd(keys[0].due, {kept.turn.turn_id: 1})
    said = LeaseRenewal(settings, store).renew_leases(claims)
    assert said == {
        kept.token: ("held", ""),
        lost.token: ("fenced", ""),
        stopped.token: ("held", "cancelled"),
        damaged.token: ("damaged", ""),
        missing.token: ("fenced", ""),
    }
    now = store.time()[0] * 1000
    until = int(store.hget(names[0], "lease_until") or 0)
    assert until > now + 1000 * settings.lease_seconds - 2000
    assert store.zscore(keys[0].due, kept.turn.turn_id) == until
    assert not store.exists(names[4]), "a record that is gone is not begun anew"


async def test_three_hundred_leases_are_renewed_by_two_commands(
    client: TurnsClient, settings: Settings, store: redis.Redis
) -> None:
    claims, beats = await held(client, settings, 300), LeaseRenewal(settings, store)
    beats.load_script()

    def called() -> int:
        info: dict[str, Any] = store.info("commandstats")  # type: ignore[assignment]
        return int(info.get("cmdstat_evalsha", {}).get("calls", 0))

    before = called()
    said = beats.renew_leases(claims)
    assert (len(said), called() - before) == (300, 2)


async def test_the_deadline_is_looked_at_before_a_lease_ends(
    client: TurnsClient, settings: Settings, store: redis.Redis
) -> None:
    settings = replace(settings, lease_seconds=1200.0)
    turn_id = await client.submitter.submit(request(deadline_seconds=600.0))
    claim = claimed(Ledger(settings, "worker-1"), turn_id)
    LeaseRenewal(settings, store).renew_leases([claim])
    keys = keys_for_turn(settings.namespace, turn_id)
    assert store.zscore(keys.due, turn_id) == float(store.hget(keys.turn(turn_id), "deadline_at") or 0)


async def test_a_server_that_forgot_the_script_is_given_it_again(
    client: TurnsClient, settings: Settings, store: redis.Redis
) -> None:
    [claim] = await held(client, settings, 1)
    beats = LeaseRenewal(settings, store)
    store.script_flush()
    assert beats.renew_leases([claim]) == {claim.token: ("held", "")}


async def test_a_store_that_takes_no_writes_is_no_fence(client: TurnsClient, private_settings: Settings) -> None:
    async with TurnsClient(private_settings) as own:
        claims = await held(own, private_settings, 2)
    with redis.Redis.from_url(private_settings.redis_url) as store:
        store.replicaof("127.0.0.1", "1")
        with pytest.raises(ReadOnlyError):
            LeaseRenewal(private_settings, store).renew_leases(claims)
