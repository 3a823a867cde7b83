"""Dead letters: kept until they are dropped."""

from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import TurnNotFinished
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.turns.record.claim import LeaseClaim
from tests.integration.lua.by_hand import FIRST, request
from tests.on_loop import Ledger
from tests.replays import replay_turn
from tests.support import wait_until


async def test_a_dead_letter_stays_until_it_is_dropped_and_its_replay_is_one_new_turn(
    settings: Settings, client: TurnsClient, store: redis.Redis
) -> None:
    ledger = Ledger(replace(settings, strikes=1, lease_seconds=0.5), "w")
    turn_id = await client.submitter.submit(request())
    with pytest.raises(TurnNotFinished, match="still running"):
        await replay_turn(client, turn_id)
    assert isinstance(ledger.claim_turn(turn_id, "s-1", FIRST, alone=True), LeaseClaim)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).outcome == "dead")
    assert [turn.turn_id for turn in await client.dead_letters.list_all()] == [turn_id]
    key = Keys(settings.namespace).turn(turn_id)
    assert store.ttl(key) == -1
    replayed = await replay_turn(client, turn_id)
    assert await replay_turn(client, turn_id) == replayed != turn_id
    assert (await client.reader.read_turn(replayed)).labels["replay_of"] == turn_id
    with pytest.raises(TurnNotFinished, match="not a dead letter"):
        await client.dead_letters.drop_letter(replayed)
    for _ in range(2):
        await client.dead_letters.drop_letter(turn_id)
    assert await client.dead_letters.list_all() == []
    assert store.ttl(key) > 0
