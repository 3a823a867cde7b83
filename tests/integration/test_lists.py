"""Lists of turns over a real store: command, API and page find the same turns, and nobody else's."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from api_client import api_keys as keys
from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest, HelixError, TurnNotFound
from api_client.contract.owners import owner_of_key
from api_client.contract.settings import Settings
from api_client.index.search import Cursor, Search
from api_client.index.turn_lookup import find_turn
from api_client.web.app.relay_server import create_app
from tests.html import Document
from tests.installation import asked, environ_of
from tests.integration.engine import GOOD, NO_MARKER, Bench, says
from tests.unit.web.conftest import caller
from worker.cli import cli

ALICE, BOB = "key-alice", "key-bob"
PLAIN, DEAR = "scripted", "oracle"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, models={PLAIN: "scripted", DEAR: "scripted"}, strikes=3)


@pytest.fixture
async def known(bench: Bench) -> dict[str, str]:
    """One turn of each kind, by a name; the older first."""
    failing = {"policy": {"step_marker": ("retry", "fail")}, "max_attempts": 2}
    return {
        "passed": await ended(bench, says(GOOD), owner=owner_of_key(ALICE), session_id="one", text="Find the Needle"),
        "again": await ended(bench, says(NO_MARKER), says(GOOD), owner=owner_of_key(BOB), session_id="two"),
        "failed": await ended(
            bench, says(NO_MARKER), says(NO_MARKER), owner=owner_of_key(BOB), session_id="two", model=DEAR, **failing
        ),
        "queued": await bench.submit(owner=owner_of_key(ALICE), session_id="three"),
    }


async def ended(bench: Bench, *plays: Any, session_id: str, text: str = "Hallo", **more: Any) -> str:
    message = ({"role": "user", "content": text},)
    return (await bench.outcome(*plays, messages=message, session_id=session_id, **more)).turn_id


def command(settings: Settings, *arguments: str, code: int = 0) -> str:
    """What a command writes; it runs in this process."""
    done = CliRunner().invoke(cli, arguments, env=environ_of(settings))
    if isinstance(done.exception, HelixError):
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Callable[..., Any]]:
    """Asks the relay with a key."""
    app = create_app(replace(settings, api_keys=(ALICE, BOB)))

    async def get(address: str, key: str = ALICE, **query: str) -> httpx2.Response:
        async with caller(app, host="203.0.113.7") as http:
            return await http.get(address, params=query, headers={"authorization": f"Bearer {key}"})

    async with app.router.lifespan_context(app):
        yield get


QUERIES: tuple[tuple[dict[str, str], list[str]], ...] = (
    ({}, ["queued", "failed", "again", "passed"]),
    ({"sort": "oldest"}, ["passed", "again", "failed", "queued"]),
    ({"status": "unfinished"}, ["queued"]),
    ({"status": "success"}, ["again", "passed"]),
    ({"status": "failed,queued"}, ["queued", "failed"]),
    ({"model": DEAR}, ["failed"]),
    ({"flow": "v2"}, ["queued", "failed", "again", "passed"]),
    ({"flow": "v3"}, []),
    ({"session": "two"}, ["failed", "again"]),
    ({"owner": owner_of_key(BOB)}, ["failed", "again"]),
    ({"rule": "step_marker"}, ["failed", "again"]),
    ({"rule": "MISSING_STEP_MARKER", "status": "success"}, ["again"]),
    ({"text": "nEEDLE"}, ["passed"]),
    ({"text": "no such text"}, []),
    ({"since": "1h"}, ["queued", "failed", "again", "passed"]),
    ({"until": "1h"}, []),
    ({"lost": "1"}, []),
)


def options(query: dict[str, str]) -> Iterator[str]:
    """The query as the command takes it."""
    for name, value in query.items():
        if name == "lost":
            yield "--lost"
            continue
        for part in value.split(",") if name == "status" else [value]:
            yield from (f"--{name}", part)


async def test_command_api_and_page_find_the_same_turns(known: dict[str, str], settings: Settings) -> None:
    operator = keys.add_key(settings.keys_path, keys.ApiKey(name="ops", hash="", owner="ops", right="operator"))
    app = create_app(settings)
    async with caller(app) as http:
        http.headers["authorization"] = f"Bearer {operator}"
        await http.post("/sign-in", data={"key": operator})
        for query, names in QUERIES:
            wanted = [known[name] for name in names]
            listed = (await http.get("/v1/turns", params=query)).json()
            assert [turn["turn_id"] for turn in listed["data"]] == wanted, query
            page = Document((await http.get("/turns", params=query)).text)
            links = [link.attributes["href"] for link in page.all("a", **{"class": "ask"})]
            assert links == [f"/turns/{turn_id}" for turn_id in wanted], query
            told = json.loads(await asyncio.to_thread(command, settings, "turn", "list", "--json", *options(query)))
            assert [turn["turn_id"] for turn in told["turns"]] == wanted, query


async def test_a_key_sees_its_own_turns_alone_whatever_it_asks_for(
    known: dict[str, str], api: Callable[..., Any]
) -> None:
    for query in ({}, {"owner": owner_of_key(BOB)}, {"session": "two"}, {"status": "failed"}, {"rule": "step_marker"}):
        seen = [turn["turn_id"] for turn in (await api("/v1/turns", **query)).json()["data"]]
        assert set(seen) <= {known["passed"], known["queued"]}, query
    assert len((await api("/v1/turns")).json()["data"]) == 2
    assert [t["turn_id"] for t in (await api("/v1/turns", key=BOB)).json()["data"]] == [known["failed"], known["again"]]


async def test_the_beginning_of_an_id_names_a_turn_of_ones_own_and_nobody_elses(
    known: dict[str, str], api: Callable[..., Any]
) -> None:
    short = known["passed"][:15]
    assert (await api(f"/v1/turns/{short}")).json()["turn_id"] == known["passed"]
    assert (await api(f"/v1/turns/{short}/attempts")).status_code == 200
    assert (await api(f"/v1/turns/{short}", key=BOB)).status_code == 404
    assert (await api("/v1/turns/last")).json()["turn_id"] == known["queued"]
    assert (await api("/v1/turns/last", key=BOB)).json()["turn_id"] == known["failed"]
    assert (await api("/v1/turns/last", key="key-nobody")).status_code == 401


async def test_a_command_takes_the_beginning_of_an_id_and_last(
    bench: Bench, known: dict[str, str], settings: Settings
) -> None:
    short = known["failed"].partition("-")[2][:12]
    for written, name in ((short, "failed"), ("last", "queued")):
        told = json.loads(await asyncio.to_thread(command, settings, "turn", "show", written, "--json"))
        assert told["turn_id"] == known[name]
    assert "no turn 'ffff0000'" in await asyncio.to_thread(command, settings, "turn", "show", "ffff0000")
    assert "cancelled" in await asyncio.to_thread(command, settings, "turn", "cancel", "last")
    assert (await bench.client.reader.read_turn(known["queued"])).outcome == "cancelled"


async def test_a_beginning_that_several_ids_share_is_refused_with_two_of_them(bench: Bench) -> None:
    one, other = f"turn-{'a' * 31}1", f"turn-{'a' * 31}2"
    for turn_id in (one, other):
        await bench.client.submitter.submit(bench_request(turn_id), turn_id=turn_id)
    with pytest.raises(BadRequest, match=f"{one} and {other}|{other} and {one}"):
        await find_turn(bench.client.lists, "aaaaaa")
    assert await find_turn(bench.client.lists, one[:-1] + "1") == one
    with pytest.raises(TurnNotFound):
        await find_turn(bench.client.lists, "aaaa*")


def bench_request(session_id: str) -> Any:

    return asked("hello", session_id, model=PLAIN)


async def copies(bench: Bench, number: int, *, each_ms: int = 1) -> set[str]:
    """That many finished turns, ``each_ms`` of them within one millisecond."""
    first = await bench.outcome(says(GOOD))
    names, at = bench.keys, int(first.finished_at * 1000)
    made = [f"turn-{count:032x}" for count in range(number)]
    pipe = bench.store.pipeline(transaction=False)
    for count, turn_id in enumerate(made):
        for part in ("", ":texts"):
            pipe.copy(names.turn(first.turn_id) + part, names.turn(turn_id) + part)
        finished = at - 10 - count // each_ms
        pipe.hset(names.turn(turn_id), mapping={"id": turn_id, "finished_at": finished})
        pipe.zadd(names.finished, {turn_id: finished})
    pipe.execute()
    return {first.turn_id, *made}


async def every_page(client: TurnsClient, search: Search, **how: Any) -> tuple[list[str], int]:
    """The ids of all pages, and how many pages there were."""
    seen, pages, after = list[str](), 0, None
    while True:
        page = await client.lists.read_page(search, after=after, **how)
        seen, pages = [*seen, *(turn.turn_id for turn in page.turns)], pages + 1
        if page.next is None:
            return seen, pages
        after = Cursor.parse(str(page.next))


@pytest.mark.parametrize("sort", ["newest", "oldest"])
@pytest.mark.parametrize("each_ms", [1, 900])
async def test_pages_give_each_turn_once_however_many_ended_in_one_millisecond(
    bench: Bench, sort: str, each_ms: int
) -> None:
    made = await copies(bench, 1300, each_ms=each_ms)
    made.add(await bench.submit(session_id="waits"))
    seen, pages = await every_page(bench.client, Search(sort=sort), count=200, seconds=60)
    assert len(seen) == len(set(seen)) == len(made) == 1302
    assert set(seen) == made
    assert pages == 7
    assert seen.index(next(iter(made - set(seen[1:-1])))) in {0, 1301}


async def test_a_search_that_takes_too_long_ends_its_page_and_goes_on_without_a_gap(bench: Bench) -> None:
    made = await copies(bench, 1300)
    seen, pages = await every_page(bench.client, Search(text="wie geht"), count=2000, seconds=0)
    assert set(seen) == made
    assert len(seen) == len(made)
    assert pages > 5
    seen, pages = await every_page(bench.client, Search(text="nobody says this"), count=50, seconds=0)
    assert (seen, pages > 2) == ([], True)


@pytest.mark.parametrize("sort", ["newest", "oldest"])
@pytest.mark.parametrize(("each_ms", "own_turn"), [(1, 700), (2, 700), (2, 701), (7, 699), (900, 700)])
async def test_a_page_that_ends_early_names_no_turn_that_it_does_not_show(
    bench: Bench, sort: str, each_ms: int, own_turn: int
) -> None:
    made = await copies(bench, 1300, each_ms=each_ms)
    search, after, named, own = Search(sort=sort, owner="stranger"), None, set[str](), 0
    bench.store.hset(bench.keys.turn(sorted(made)[own_turn]), "owner", "stranger")
    for _ in range(99):
        page = await bench.client.lists.read_page(search, after=after, seconds=0)
        own += len(page.turns)
        if page.next is None:
            break
        after = Cursor.parse(str(page.next))
        named |= {after.turn_id} - {turn.turn_id for turn in page.turns}
    assert own == 1
    assert named
    assert not (named - {f"turn-{'0' * 32}"}) & made, "only the lowest id, which is also that of a copy"


async def test_turns_that_are_cleared_away_meanwhile_hide_no_other(bench: Bench) -> None:
    made = await copies(bench, 1300)
    first = await bench.client.lists.read_page(Search(sort="oldest"), count=600, seconds=60)
    bench.store.zrem(bench.keys.finished, *(turn.turn_id for turn in first.turns[:300]))
    rest = await bench.client.lists.read_page(Search(sort="oldest"), after=first.next, count=2000, seconds=60)
    assert {turn.turn_id for turn in (*first.turns, *rest.turns)} == made


async def test_an_unknown_word_of_a_list_is_refused_by_its_name(api: Callable[..., Any]) -> None:
    wrong = {
        "status": "nonsense", "sort": "random", "since": "yesterday", "cursor": "f1", "limit": "0", "text": "x" * 301,
        "lost": "maybe",
    }  # fmt: skip
    for name, value in wrong.items():
        answer = await api("/v1/turns", **{name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    misspelt = (await api("/v1/turns", outcome="failed")).json()["error"]["message"]
    assert misspelt.startswith('"outcome": no such filter; there are status, model'), "never a list of everything"
    assert (await api("/v1/turns", limit="201")).json()["error"]["message"] == (
        "limit: must be less than or equal to 200"
    )
