"""What a reader of one turn sees, whenever it comes."""

import asyncio

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import TurnNotFound
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.keys import Keys
from api_client.index.search import Search
from tests.integration.lua.by_hand import PASSED, claimed, request
from tests.on_loop import Ledger


async def test_a_turn_of_another_owner_is_not_found(client: TurnsClient) -> None:
    turn_id = await client.submitter.submit(request(owner="a"))
    for asked in (client.reader.read_turn, client.reader.read_attempts, client.canceller.cancel):
        with pytest.raises(TurnNotFound):
            await asked(turn_id, owner="b")
    with pytest.raises(TurnNotFound):
        await client.reader.read_turn("../etc")


async def test_readers_that_start_late_or_come_back_see_every_event_once_in_order(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request())
    claim = claimed(ledger, turn_id)
    live = client.reader.follow_turn(turn_id)
    seen = [await anext(live)]
    for number in range(1200):  # more than one page of the log
        ledger.append_events(claim, [AttemptOutput(attempt=1, text=f"{number} ")])
    ledger.commit_transition(claim, PASSED)
    seen += [event async for event in live]
    numbers = [event.seq for event in seen if event is not None]
    assert numbers == list(range(1, 1204))
    late = [event.seq async for event in client.reader.follow_turn(turn_id, after=600) if event is not None]
    assert late == list(range(601, 1204))
    turn = await client.reader.read_turn(turn_id)
    other_history = [e.seq async for e in client.reader.follow_turn(turn_id, after=600, epoch="0ther") if e is not None]
    assert other_history == list(range(1, 1204))
    assert turn.epoch != "0ther"


async def test_a_reader_that_has_seen_the_end_is_told_nothing_and_one_from_beyond_it_starts_anew(
    client: TurnsClient, ledger: Ledger
) -> None:
    turn_id = await client.submitter.submit(request())
    ledger.commit_transition(claimed(ledger, turn_id), PASSED)
    assert [event async for event in client.reader.follow_turn(turn_id, after=3)] == []
    assert [event.seq async for event in client.reader.follow_turn(turn_id, after=99) if event is not None] == [1, 2, 3]


async def test_waiting_for_a_result_ends_when_its_time_is_up(client: TurnsClient) -> None:
    turn_id = await client.submitter.submit(request())
    with pytest.raises(TimeoutError):
        await client.reader.await_result(turn_id, timeout=0.3)


async def test_a_reader_of_a_turn_that_the_store_lost_is_told_instead_of_waiting_for_ever(
    client: TurnsClient, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request())
    events = client.reader.follow_turn(turn_id)
    await anext(events)
    keys = Keys(client.settings.namespace)
    store.delete(keys.turn(turn_id), keys.log(turn_id))
    with pytest.raises(TurnNotFound):
        async for _ in events:
            pass


async def test_who_only_reads_waits_for_nothing_while_writes_wait(client: TurnsClient, store: redis.Redis) -> None:
    """Writes wait while a full disk is being mended; a server that knows no script yet must not make reads wait too."""
    turn_id = await client.submitter.submit(request())
    store.script_flush()
    store.client_pause(60_000, all=False)
    try:
        async with asyncio.timeout(30):
            assert [each.turn_id for each in await client.lists.list_unfinished(Search())] == [turn_id]
            assert (await client.lists.read_page(Search())).turns
            assert (await client.reader.read_outline(turn_id)).events
            assert await client.figures.read_span("24h")
    finally:
        store.client_unpause()
