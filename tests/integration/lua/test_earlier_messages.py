"""A conversation's earlier messages: stored once, read whole, and kept as long as a turn needs them."""

from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.index.clearing import clear
from api_client.turns.record.claim import LeaseClaim
from tests.integration.lua.by_hand import FIRST, PASSED, claimed, request
from tests.on_loop import Ledger
from tests.support import wait_until

ANSWER = "An answer of some length. " * 20


def conversation(turns: int, *, said: str = "Question") -> tuple[dict[str, str], ...]:
    """Return the messages that a chat sends with its turn number ``turns``."""
    messages: list[dict[str, str]] = []
    for number in range(turns):
        messages += [{"role": "user", "content": f"{said} {number}"}, {"role": "assistant", "content": ANSWER}]
    return tuple(messages[:-1])


def chat(turns: int, **more: Any) -> TurnRequest:
    return replace(request(), messages=conversation(turns, **more))


@pytest.fixture
def keys(settings: Settings) -> Keys:
    return Keys(settings.namespace)


async def finish(client: TurnsClient, ledger: Ledger, asked: TurnRequest) -> str:
    turn_id = await client.submitter.submit(asked)
    claim = claimed(ledger, turn_id)
    assert claim.turn.request.messages == asked.messages, "the agent gets the whole conversation"
    ledger.commit_transition(claim, PASSED)
    return turn_id


def stored_bytes(store: redis.Redis) -> int:
    return sum(int(store.memory_usage(key, samples=0) or 0) for key in store.scan_iter())  # type: ignore[arg-type]


async def test_a_conversation_twice_as_long_takes_twice_the_bytes(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    sizes: dict[int, int] = {}
    for number in range(1, 61):
        turn_id = await finish(client, ledger, chat(number))
        if number in {10, 30, 40, 60}:
            sizes[number] = stored_bytes(store)
    first, second = sizes[30] - sizes[10], sizes[60] - sizes[40]
    assert second < 1.2 * first, (first, second)
    read = await client.reader.read_turn(turn_id)
    assert read.request.messages == conversation(60)


async def test_a_submit_writes_only_the_messages_that_are_new(
    client: TurnsClient, ledger: Ledger, store: redis.Redis, keys: Keys
) -> None:
    await finish(client, ledger, chat(40))
    known = {name for name in store.hkeys(keys.history("s-1")) if len(name) == 32}  # type: ignore[union-attr]
    store.config_resetstat()
    await client.submitter.submit(chat(41))
    stats: Any = store.info("commandstats")
    assert stats["cmdstat_hexists"]["calls"] <= 3
    assert len({name for name in store.hkeys(keys.history("s-1")) if len(name) == 32} - known) == 2  # type: ignore[union-attr]


async def test_an_earlier_turn_that_expires_takes_nothing_from_a_later_one(
    client: TurnsClient, ledger: Ledger, store: redis.Redis, keys: Keys
) -> None:
    first = await finish(client, ledger, chat(10))
    second = await client.submitter.submit(chat(11))
    assert store.ttl(keys.history("s-1")) == -1, "a turn that has not ended keeps its messages"
    store.delete(keys.turn(first), keys.texts(first), keys.log(first))
    assert (await client.reader.read_turn(second)).request.messages == conversation(11)
    ledger.commit_transition(claimed(ledger, second), PASSED)
    life, record = (store.pttl(key) for key in (keys.history("s-1"), keys.turn(second)))
    assert life >= record > 0  # type: ignore[operator]


async def test_a_branch_goes_when_its_turn_has_expired_and_the_rest_stays(
    client: TurnsClient, ledger: Ledger, store: redis.Redis, keys: Keys
) -> None:
    """The user edits a message: the first wording belongs to the first turn alone."""
    name = keys.history("s-1")
    first = await finish(client, ledger, chat(10, said="Secret"))
    kept = await finish(client, ledger, chat(10))
    week = int(client.settings.retention_seconds * 1000)
    head, _, ended = store.hget(name, f"@{first}").decode().partition(" ")  # type: ignore[union-attr]
    store.hset(name, mapping={f"@{first}": f"{head} {int(ended) - week - 1}", "swept": int(ended) - week})
    await client.submitter.submit(chat(11))
    said = b"".join(store.hvals(name))  # type: ignore[arg-type]
    assert b"Secret" not in said
    assert store.hget(name, f"@{first}") is None
    assert (await client.reader.read_turn(kept)).request.messages == conversation(10)


async def test_a_shorter_retention_reaches_the_messages(
    client: TurnsClient, ledger: Ledger, store: redis.Redis, keys: Keys
) -> None:
    await finish(client, ledger, chat(10))
    shorter = replace(client.settings, retention_seconds=600.0)
    async with TurnsClient(shorter) as other:
        assert await clear(other.store, dry_run=True)
        assert store.ttl(keys.history("s-1")) > 600  # type: ignore[operator]
        await clear(other.store, dry_run=False)
    assert 0 < store.ttl(keys.history("s-1")) <= 600  # type: ignore[operator]


async def test_a_dead_letter_keeps_its_messages_until_it_is_dropped(
    settings: Settings, client: TurnsClient, ledger: Ledger, store: redis.Redis, keys: Keys
) -> None:
    dead, mortal = await client.submitter.submit(chat(10)), Ledger(replace(settings, strikes=1, lease_seconds=0.5), "w")
    assert isinstance(mortal.claim_turn(dead, "s-1", FIRST, alone=True), LeaseClaim)
    await wait_until(lambda: mortal.reap_turn(dead, may_take=True).outcome == "dead")
    await finish(client, ledger, chat(11))
    assert store.ttl(keys.history("s-1")) == -1
    for _ in range(2):
        await client.dead_letters.drop_letter(dead)
    assert store.ttl(keys.history("s-1")) > 0  # type: ignore[operator]
    assert store.hget(keys.history("s-1"), "open") == b"0"


async def test_a_record_whose_earlier_messages_are_lost_is_damaged_and_not_cut(
    client: TurnsClient, store: redis.Redis, keys: Keys
) -> None:
    turn_id = await client.submitter.submit(chat(10))
    store.delete(keys.history("s-1"))
    with pytest.raises(ValueError, match="earlier messages of the conversation are missing"):
        await client.reader.read_turn(turn_id)
