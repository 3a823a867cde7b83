"""What one owner may take of a relay and its store (the class "resource exhaustion"); real store, real relays."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import redis

from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.settings import Settings
from api_client.relay_state.submission_limits import _STORED_WITHIN_MS, OwnerLimits, SubmissionLimits
from api_client.store import Store
from api_client.store.connecting import _KEPT_CONNECTIONS
from api_client.web.app.relay_server import create_app
from tests.constants import Constants
from tests.installation import Installation, RelayProcess, web
from tests.integration.served import PAGE, REGENERATE, serving
from tests.integration.test_web_store import BODY, DOORS
from tests.support import wait_for, wait_until
from tests.unit.web.conftest import caller

ACCESS = "api_client.web.identity.access"
ONE, OTHER = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}
TITLE = {"x-owui-task": "title_generation"}


@contextlib.asynccontextmanager
async def relay(settings: Settings, **changes: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller of a relay with the keys ``one`` and ``other``; no worker runs, so turns wait."""
    (settings.root / "work").mkdir(exist_ok=True)
    granted: dict[str, Any] = {"api_keys": ("one", "other"), "phase_directories": ("work=HELIX_API_KEYS",)}
    async with web(replace(settings, **granted, **changes)) as http:
        yield http


def assert_refused(answer: httpx2.Response, code: str, most_seconds: int) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, code), answer.text
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(answer.headers["retry-after"]) <= most_seconds


async def test_turns_beyond_the_rate_are_told_when_to_come_again_on_every_relay(
    settings: Settings, constants: Constants
) -> None:
    constants(ACCESS, TURNS_PER_MINUTE=2)
    async with relay(settings) as here, relay(settings) as there:
        for http in (here, there):
            assert (await http.post("/v1/turns", json=BODY, headers=ONE)).status_code == 202
        for path, body in DOORS:
            assert_refused(await there.post(f"/v1/{path}", json=body, headers=ONE), "rate_limited", 30)
        assert (await here.get("/v1/models", headers=ONE)).status_code == 200, "reading is not counted"
        assert (await here.post("/v1/turns", json=BODY, headers=OTHER)).status_code == 202, "another owner's is its own"


async def test_background_requests_count_against_the_rate_five_as_one_turn(
    settings: Settings, constants: Constants
) -> None:
    constants(ACCESS, TURNS_PER_MINUTE=2)
    async with relay(settings) as http:
        for path, body in (("chat/completions", BODY), ("responses", {**BODY, "input": "hi"})) * 5:
            answer = await http.post(f"/v1/{path}", json=body, headers=ONE | TITLE)
            assert answer.status_code == 200
        for path, body in (("chat/completions", BODY), ("responses", {**BODY, "input": "hi"})):
            assert_refused(await http.post(f"/v1/{path}", json=body, headers=ONE | TITLE), "rate_limited", 30)


async def test_an_owner_has_so_many_unfinished_turns_until_one_ends(settings: Settings, constants: Constants) -> None:
    constants(ACCESS, UNFINISHED_TURNS=2)
    async with relay(settings) as http:
        first, _ = [(await http.post("/v1/turns", json=BODY, headers=ONE)).json()["turn_id"] for _ in range(2)]
        for path, body in DOORS:
            assert_refused(await http.post(f"/v1/{path}", json=body, headers=ONE), "too_many_unfinished", 1)
        assert (await http.post("/v1/turns", json=BODY, headers=OTHER)).status_code == 202
        assert (await http.delete(f"/v1/turns/{first}", headers=ONE)).status_code == 200
        assert (await http.post("/v1/turns", json=BODY, headers=ONE)).status_code == 202
        assert_refused(await http.post("/v1/turns", json=BODY, headers=ONE), "too_many_unfinished", 1)


async def test_a_repeat_with_its_key_finds_its_turn_where_no_more_are_taken(
    settings: Settings, constants: Constants
) -> None:
    constants(ACCESS, UNFINISHED_TURNS=1)
    other = {**BODY, "messages": [{"role": "user", "content": "another question"}]}
    found = list[str]()
    async with relay(settings) as http:
        for body, keyed, status in ((BODY, "a", 202), (BODY, "a", 202), (BODY, "b", 429), (other, "a", 429)):
            answer = await http.post("/v1/turns", json=body, headers=ONE | {"idempotency-key": keyed})
            assert answer.status_code == status, (keyed, answer.text)
            found += [answer.json()["turn_id"]] if status == 202 else []
    assert found[0] == found[1]


async def test_a_regenerate_finds_the_lost_turn_where_no_more_are_taken(
    settings: Settings, constants: Constants
) -> None:
    constants(ACCESS, TURNS_PER_MINUTE=1)
    async with serving(replace(settings, api_keys=("one",))) as served:
        lost = await served.turn_of(PAGE | ONE)
        assert await served.turn_of(REGENERATE | ONE) == lost
        another = {**PAGE, "x-owui-user-message-id": "u2"} | ONE
        assert_refused(await served.http.post("/v1/chat/completions", json=BODY, headers=another), "rate_limited", 60)
        assert not (await served.client.reader.read_turn(lost)).stop, "a question that was refused cancels nothing"


async def test_each_phase_of_a_file_counts_as_an_unfinished_turn(settings: Settings, constants: Constants) -> None:
    phases = [{"id": f"p{n}", "name": "P", "type": "doc", "description": "Write."} for n in range(3)]
    body = {"directory": "work", "phases": phases}
    constants(ACCESS, UNFINISHED_TURNS=2)
    async with relay(settings) as http:
        assert_refused(await http.post("/v1/phases", json=body, headers=ONE), "too_many_unfinished", 1)
    constants(ACCESS, UNFINISHED_TURNS=3)
    async with relay(settings) as http:
        assert (await http.post("/v1/phases", json=body, headers=ONE)).status_code == 202
        assert_refused(await http.post("/v1/turns", json=BODY, headers=ONE), "too_many_unfinished", 1)


async def test_phases_repeated_with_their_key_are_found_where_no_more_are_taken(
    settings: Settings, constants: Constants
) -> None:
    constants(ACCESS, TURNS_PER_MINUTE=1)
    phases = [{"id": f"p{n}", "name": "P", "type": "doc", "description": "Write."} for n in range(2)]
    body, keyed = {"directory": "work", "phases": phases}, ONE | {"idempotency-key": "a"}
    async with relay(settings) as http:
        first, again = [await http.post("/v1/phases", json=body, headers=keyed) for _ in range(2)]
        assert (first.status_code, again.status_code) == (202, 202), again.text
        assert again.json() == first.json()
        for other in (ONE, ONE | {"idempotency-key": "b"}):
            assert_refused(await http.post("/v1/phases", json=body, headers=other), "rate_limited", 60)


async def test_a_burst_at_once_is_held_to_the_limit(settings: Settings, constants: Constants) -> None:
    constants(ACCESS, UNFINISHED_TURNS=3, TURNS_PER_MINUTE=0)
    async with relay(settings) as http:
        answers = await asyncio.gather(*(http.post("/v1/turns", json=BODY, headers=ONE) for _ in range(20)))
    said = [answer.status_code for answer in answers if answer.status_code != 503]  # a store too slow to say
    assert said.count(202) <= 3
    assert said.count(429) == len(said) - said.count(202)


async def test_an_owner_stores_so_many_bytes(settings: Settings, constants: Constants) -> None:
    long = {"model": "scripted", "messages": [{"role": "user", "content": "x" * 100_000}]}
    constants(ACCESS, STORED_BYTES=500_000)
    async with relay(settings) as http:
        assert [(await http.post("/v1/turns", json=long, headers=ONE)).status_code for _ in range(3)] == [202, 202, 429]
        assert_refused(await http.post("/v1/turns", json=long, headers=ONE), "storage_full", 7 * 86_400)
        assert (await http.post("/v1/turns", json=BODY, headers=ONE)).status_code == 202, "a short one still fits"
        assert (await http.post("/v1/turns", json=long, headers=OTHER)).status_code == 202


async def test_without_keys_there_are_no_limits_of_an_owner(settings: Settings, constants: Constants) -> None:
    constants(ACCESS, TURNS_PER_MINUTE=1, UNFINISHED_TURNS=1, STORED_BYTES=1, REQUESTS=1)
    async with web(settings) as http:
        for _ in range(3):
            assert (await http.post("/v1/turns", json=BODY)).status_code == 202


async def test_a_noted_turn_that_was_never_stored_counts_for_a_minute_only(settings: Settings) -> None:
    store = Store(settings)
    allowances, limits = SubmissionLimits(store), OwnerLimits(unfinished=1)
    try:
        assert await allowances.admit_turns("a", limits, ["turn-" + "1" * 32]) is None
        refused = await allowances.admit_turns("a", limits, ["turn-" + "2" * 32])
        assert refused
        assert refused.limit == "unfinished"
        key = Keys(settings.namespace).unfinished("a")
        await store.redis.zincrby(key, -_STORED_WITHIN_MS - 2_000, "turn-" + "1" * 32)
        assert await allowances.admit_turns("a", limits, ["turn-" + "2" * 32]) is None
        assert await store.redis.pttl(key) > 0
    finally:
        await store.close()


async def test_requests_at_once_all_see_that_turns_have_ended(settings: Settings) -> None:
    store = Store(settings)
    allowances, limits = SubmissionLimits(store), OwnerLimits(unfinished=10)
    ids = [f"turn-{number:032x}" for number in range(15)]
    try:
        await allowances.note_unfinished("a", limits, ids[:10])
        for turn_id in ids[:10]:
            await store.redis.hset(keys_for_turn(settings.namespace, turn_id).turn(turn_id), "state", "finished")
        assert (
            await asyncio.gather(*(allowances.admit_turns("a", limits, [turn_id]) for turn_id in ids[10:]))
            == [None] * 5
        )
    finally:
        await store.close()


@pytest.fixture
def process(installation: Installation, constants: Constants) -> RelayProcess:
    """A real relay of a few requests and connections."""
    constants(ACCESS, REQUESTS=3)
    return installation.relay(api_keys=("one", "other"), max_connections=12, log_level="error")


async def test_an_owner_has_so_many_streams_and_gets_them_back(process: RelayProcess) -> None:
    async with httpx2.AsyncClient(base_url=process.url, timeout=60) as http, contextlib.AsyncExitStack() as streams:
        turn_id = (await http.post("/v1/turns", json=BODY, headers=ONE)).json()["turn_id"]
        url = f"/v1/turns/{turn_id}/events"
        for _ in range(3):
            stream = await streams.enter_async_context(http.stream("GET", url, headers=ONE))
            assert stream.status_code == 200
        assert_refused(await http.get(url, headers=ONE), "too_many_requests", 1)
        assert (await http.get("/v1/models", headers=OTHER)).status_code == 200
        await streams.aclose()

        async def free() -> bool:
            return (await http.get("/v1/models", headers=ONE)).status_code == 200

        await wait_until(free)


async def test_one_connection_too_many_is_told_so_and_the_others_go_on(process: RelayProcess) -> None:
    address = ("127.0.0.1", process.port)
    with contextlib.ExitStack() as stack:

        def full() -> bool:
            """One more is at work; an idle one, whose head was not read yet, would make room."""
            client = stack.enter_context(socket.create_connection(address))
            client.sendall(b"POST /sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
            return _asked(address).startswith(b"HTTP/1.1 503")

        wait_for(full)
        head, _, body = _asked(address).partition(b"\r\n\r\n")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        assert b"x-request-id: req-" in head
        assert b"retry-after" in head
        assert _asked(address, "/healthz").startswith(b"HTTP/1.1 200"), "health checks have places of their own"
    wait_for(process.answers)


def _asked(address: tuple[str, int], path: str = "/v1/models") -> bytes:
    """All that a connection hears."""
    heard = b""
    with socket.create_connection(address) as client, contextlib.suppress(ConnectionError):
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        while piece := client.recv(65_536):
            heard += piece
    return heard


async def test_head_works_where_get_does_and_ends_at_once(process: RelayProcess) -> None:
    async with httpx2.AsyncClient(base_url=process.url, timeout=60, headers=ONE) as http:
        turn_id = (await http.post("/v1/turns", json=BODY)).json()["turn_id"]
        for path in ("/healthz", "/v1/models", f"/v1/turns/{turn_id}", "/sign-in", "/openapi.json", "/nothing"):
            asked, head = await http.get(path), await http.head(path)
            assert (head.status_code, head.content) == (asked.status_code, b""), path
            assert head.headers["content-type"] == asked.headers["content-type"]
            assert head.headers["x-request-id"].startswith("req-")
        for path in (f"/v1/turns/{turn_id}/events", f"/v1/responses/resp_{turn_id}?stream=true"):
            for _ in range(5):  # more than may be in progress at once: each has ended
                head = await http.head(path)
                assert (head.status_code, head.content) == (200, b"")
                assert head.headers["content-type"].startswith("text/event-stream")
        assert (await http.head("/v1/chat/completions")).status_code == 405


async def test_a_store_that_takes_no_writes_is_not_ready(private_settings: Settings) -> None:
    app = create_app(private_settings)
    with redis.Redis.from_url(private_settings.redis_url) as store:
        async with app.router.lifespan_context(app), caller(app) as http:

            async def said() -> tuple[int, str]:
                answer = await http.get("/readyz")
                return answer.status_code, answer.json()["status"]

            assert await said() == (503, "no_worker"), "no worker runs here, but the store takes writes"
            store.config_set("maxmemory-policy", "noeviction")
            store.config_set("maxmemory", 1)
            await wait_until(lambda: _equal(said, (503, "unavailable")))
            store.config_set("maxmemory", 0)
            await wait_until(lambda: _equal(said, (503, "no_worker")))
            store.replicaof("127.0.0.1", 1)
            await wait_until(lambda: _equal(said, (503, "unavailable")))
            store.replicaof("NO", "ONE")
            await wait_until(lambda: _equal(said, (503, "no_worker")))


async def _equal(said: Any, wanted: tuple[int, str]) -> bool:
    return bool(await said() == wanted)


async def test_the_connections_of_closed_streams_are_given_back(installation: Installation) -> None:
    settings, used = installation.settings, installation.relay(log_level="error")
    name = f"{settings.namespace}-probe"
    with redis.Redis.from_url(settings.redis_url) as store:
        before = len(store.client_list())
        store.client_setname(name)
        async with httpx2.AsyncClient(base_url=used.url, timeout=120, limits=httpx2.Limits()) as http:
            turn_id = (await http.post("/v1/turns", json=BODY)).json()["turn_id"]
            async with contextlib.AsyncExitStack() as streams:
                for _ in range(100):
                    stream = http.stream("GET", f"/v1/turns/{turn_id}/events")
                    assert (await streams.enter_async_context(stream)).status_code == 200
                bell = keys_for_turn(settings.namespace, turn_id).wake_up_channel(turn_id)
                await wait_until(lambda: store.pubsub_numsub(bell)[0][1] == 1)  # one for all of them
        await wait_until(lambda: store.pubsub_numsub(bell)[0][1] == 0)
        wait_for(lambda: len(store.client_list()) <= before + _KEPT_CONNECTIONS + 4)
