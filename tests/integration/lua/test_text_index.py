"""The index of texts: a search reads few messages, finds the same as without, and keeps nothing of what expired."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.index.clearing import clear
from api_client.index.search import Search
from api_client.index.selection import select_turns
from api_client.index.text_index import TextIndexKeys
from api_client.index.text_indexer import SEGMENT_TURNS, TextIndexer
from tests.installation import Installation
from tests.integration.lua.test_text_search import ASKED, MESSAGES, store_finished
from tests.support import wait_for

_CHOSEN = random.Random(5)
WORDS = ["".join(_CHOSEN.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(400)]


def many_messages(count: int) -> list[str]:
    """Return messages of thirty words, with the odd ones of the other tests between them."""
    plain = (" ".join(_CHOSEN.choices(WORDS, k=30)) for _ in range(count))
    odd = iter(MESSAGES)
    return [next(odd, text) if place % 97 == 5 else text for place, text in enumerate(plain)]


def tables_of(store: redis.Redis, settings: Settings) -> list[Any]:
    return sorted(store.scan_iter(f"{TextIndexKeys(settings.namespace).table('')}*"))


def times_of(store: redis.Redis, client: TurnsClient) -> dict[str, int]:
    """Return when each turn finished, in milliseconds."""
    found: Any = store.zrange(client.store.keys.finished, 0, -1, withscores=True)
    return {raw.decode(): int(at) for raw, at in found}


async def find_all(client: TurnsClient, search: Search, count: int = 70) -> list[str]:
    """Return all turns that match, page by page."""
    found, after = list[str](), None
    while True:
        page = await client.lists.read_page(search, after=after, count=count, seconds=60)
        found += [turn.turn_id for turn in page.turns]
        if not (after := page.next):
            return found


@pytest.mark.parametrize("sort", ["newest", "oldest"])
async def test_a_search_by_the_index_finds_the_same_in_the_same_order(
    client: TurnsClient, store: redis.Redis, sort: str
) -> None:
    said = store_finished(client, store, many_messages(3 * SEGMENT_TURNS + 300), seconds_ago=60)
    await TextIndexer(client.store).extend()
    assert len(tables_of(store, client.settings)) == 3
    ids = list(said) if sort == "oldest" else list(said)[::-1]
    for text in (*ASKED, WORDS[0], WORDS[1][2:], f"{WORDS[2]} {WORDS[3]}", "nobody says this"):
        wanted = [turn_id for turn_id in ids if text.casefold() in said[turn_id].casefold()]
        assert await find_all(client, Search(text=text, sort=sort)) == wanted, text
    times = times_of(store, client)
    begin = times[list(said)[700]] // 1000 * 1000
    for since, until in ((begin, 0), (0, begin), (begin, begin + 1000)):
        found = await find_all(client, Search(text=WORDS[0], sort=sort, since=since / 1000, until=until / 1000))
        inside = [turn_id for turn_id in ids if since <= times[turn_id] and not 0 < until <= times[turn_id]]
        assert found == [turn_id for turn_id in inside if WORDS[0] in said[turn_id]]


async def test_a_search_by_the_index_asks_for_a_thousandth_of_the_messages(
    client: TurnsClient, store: redis.Redis
) -> None:
    store_finished(client, store, ["a cylinder in hay", *many_messages(5 * SEGMENT_TURNS - 1)], seconds_ago=60)

    async def count_read(text: str) -> tuple[int, int]:
        store.config_resetstat()
        found = await find_all(client, Search(text=text))
        stats: Any = store.info("commandstats")
        return len(found), stats.get("cmdstat_hget", {"calls": 0})["calls"]

    found, read = await count_read("cylinder")
    assert (found, read >= 5 * SEGMENT_TURNS) == (1, True)
    await TextIndexer(client.store).extend()
    found, read = await count_read("cylinder")
    assert (found, read < 30) == (1, True), read
    found, read = await count_read("nobody says this")
    assert (found, read < 30) == (0, True), read


async def test_a_turn_that_expires_takes_its_part_of_the_index_with_it_and_hides_no_other(
    client: TurnsClient, store: redis.Redis
) -> None:
    said = store_finished(client, store, many_messages(2 * SEGMENT_TURNS), seconds_ago=60)
    keys, indexer = client.store.keys, TextIndexer(client.store)
    await indexer.extend()
    first, second = tables_of(store, client.settings)
    oldest, *others = said
    lives = client.settings.retention_seconds * 1000
    assert store.pexpiretime(first) == times_of(store, client)[oldest] + lives
    store.delete(keys.turn(oldest))
    store.zrem(keys.finished, oldest)
    wanted = [turn_id for turn_id in others if WORDS[0] in said[turn_id]][::-1]
    assert await find_all(client, Search(text=WORDS[0])) == wanted
    await indexer.prune()
    assert tables_of(store, client.settings) == [second]
    assert await find_all(client, Search(text=WORDS[0])) == wanted


async def test_a_shorter_retention_removes_the_index_of_what_it_removes(
    client: TurnsClient, store: redis.Redis
) -> None:
    store_finished(client, store, many_messages(SEGMENT_TURNS), seconds_ago=60)
    await TextIndexer(client.store).extend()
    assert tables_of(store, client.settings)
    async with TurnsClient(replace(client.settings, retention_seconds=30)) as shorter:
        await clear(shorter.store, dry_run=False)
    assert not tables_of(store, client.settings)
    assert not store.zcard(TextIndexKeys(client.settings.namespace).segments)


async def test_a_turn_that_ends_in_an_indexed_period_is_found(client: TurnsClient, store: redis.Redis) -> None:
    """The store's clock was set back."""
    store_finished(client, store, many_messages(SEGMENT_TURNS), seconds_ago=60)
    await TextIndexer(client.store).extend()
    [late] = store_finished(client, store, ["a cylinder"], seconds_ago=59)
    store.zadd(client.store.keys.finished, {late: sorted(times_of(store, client).values())[9]})
    assert await find_all(client, Search(text="cylinder")) == [late]
    await TextIndexer(client.store).extend()
    assert await find_all(client, Search(text="cylinder")) == [late]
    assert await TextIndexer(client.store).prune()


async def test_an_index_that_changes_during_a_search_hides_no_turn(
    client: TurnsClient, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = store_finished(client, store, many_messages(2 * SEGMENT_TURNS), seconds_ago=60)
    await TextIndexer(client.store).extend()
    locate, oldest = client.lists._texts.locate_turns, next(iter(said))

    async def locate_after_expiry(places: Any) -> Any:
        store.zrem(client.store.keys.finished, oldest)
        return await locate(places)

    monkeypatch.setattr(client.lists._texts, "locate_turns", locate_after_expiry)
    wanted = [turn_id for turn_id in said if WORDS[0] in said[turn_id] and turn_id != oldest]
    assert await find_all(client, Search(text=WORDS[0], sort="oldest")) == wanted


async def test_two_processes_that_extend_the_index_at_once_change_no_result(
    client: TurnsClient, store: redis.Redis
) -> None:
    said = store_finished(client, store, many_messages(SEGMENT_TURNS), seconds_ago=60)
    await asyncio.gather(TextIndexer(client.store).extend(), TextIndexer(client.store).extend())
    wanted = [turn_id for turn_id in said if WORDS[0] in said[turn_id]]
    assert await find_all(client, Search(text=WORDS[0])) == wanted[::-1]
    selected = await select_turns(client.lists, Search(text=WORDS[0]), only="finished")
    assert {turn.turn_id for turn in selected} == {*wanted}


async def test_one_of_several_processes_extends_the_index(client: TurnsClient, store: redis.Redis) -> None:
    first, second = TextIndexer(client.store), TextIndexer(client.store)
    await first.poll()
    store_finished(client, store, many_messages(SEGMENT_TURNS), seconds_ago=60)
    await second.poll()
    assert not tables_of(store, client.settings), "the first process looked a moment ago"
    store.delete(TextIndexKeys(client.settings.namespace).indexer)  # as it expires
    await second.poll()
    assert tables_of(store, client.settings)


async def test_a_worker_extends_the_index(installation: Installation) -> None:
    async with TurnsClient(installation.settings) as client:
        store_finished(client, installation.store, many_messages(SEGMENT_TURNS), seconds_ago=60)
        assert await client.texts.count_unindexed() == SEGMENT_TURNS
        installation.play('- attempts: [[say: "Yes. <!-- STEP: done -->"]]')
        installation.worker()
        wait_for(lambda: tables_of(installation.store, installation.settings))
        assert await client.texts.count_unindexed() == 0
