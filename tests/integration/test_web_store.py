"""The relay with the real client and store, in this process and as a process of its own."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx2
import pytest
import redis
import uvicorn

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.settings import Settings
from api_client.store import store
from api_client.web.app.relay_server import create_app
from tests.installation import asked, environ_of, relay_answers, web
from tests.ports import free_port
from tests.support import wait_for, wait_until
from worker.processes.embedded_broker import EmbeddedBroker

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
RELAY = (
    "import sys; from api_client.contract.settings import load_settings;"
    " from api_client.web.app.relay_server import serve_relay;"
    " serve_relay(load_settings(), '127.0.0.1', int(sys.argv[1]))"
)


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller of a relay over the real store; no worker runs, so turns wait."""
    async with web(settings) as client:
        yield client


async def test_a_turn_is_stored_read_and_called_off(http: httpx2.AsyncClient) -> None:
    turn = (await http.post("/v1/turns", json=BODY)).json()
    assert (await http.get(turn["url"])).json()["state"] == "queued"
    assert (await http.get(f"{turn['url']}/attempts")).json()["data"] == []
    for method, path in [("POST", f"{turn['url']}/cancel"), ("DELETE", turn["url"])]:
        cancelled = await http.request(method, path)
        assert (cancelled.status_code, cancelled.json()["outcome"]) == (200, "cancelled")
    events = await http.get(turn["events_url"])
    kinds = [line.removeprefix("event: ") for line in events.text.split("\n") if line.startswith("event: ")]
    assert kinds == ["turn.queued", "turn.finished"]


async def test_an_idempotency_key_stands_for_one_turn(http: httpx2.AsyncClient) -> None:
    key = {"idempotency-key": "once"}
    first = (await http.post("/v1/turns", json=BODY, headers=key)).json()
    assert (await http.post("/v1/turns", json=BODY, headers=key)).json() == first
    answer = await http.post("/v1/turns", json={**BODY, "locale": "en"}, headers=key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_key_reused")


async def test_a_busy_chat_can_refuse(http: httpx2.AsyncClient) -> None:
    chat = {"x-conversation-id": "c1"}
    assert (await http.post("/v1/turns", json=BODY, headers=chat)).status_code == 202
    answer = await http.post("/v1/turns", json={**BODY, "double_text": "reject"}, headers=chat)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_busy")
    other = await http.post("/v1/turns", json={**BODY, "double_text": "reject"}, headers={"x-conversation-id": "c2"})
    assert other.status_code == 202


async def test_a_cancelled_turn_ends_its_stream_with_the_reason(http: httpx2.AsyncClient) -> None:
    chat = {"x-conversation-id": "c1"}
    turn = (await http.post("/v1/turns", json=BODY, headers=chat)).json()
    behind = asyncio.create_task(
        http.post("/v1/chat/completions", json={**BODY, "stream": True}, headers={**chat, "x-owui-task": ""})
    )
    second = await _second_of(http, turn["session_id"], turn["turn_id"])
    await http.post(f"/v1/turns/{second}/cancel")
    text = (await behind).text
    assert "Vor dieser Frage ist noch 1 deiner Fragen" in text
    assert '"code":"cancelled"' in text
    assert "Die Anfrage wurde abgebrochen." in text
    assert text.endswith("data: [DONE]\n\n")


async def _second_of(http: httpx2.AsyncClient, session: str, first: str) -> str:
    relay = http._transport.app.state.relay  # type: ignore[attr-defined]
    key = keys_for_turn(relay.settings.namespace, first).session(session)

    async def waiting() -> bytes | None:
        return await relay.client.store.redis.lindex(key, 1)

    return str((await wait_until(waiting)).decode())


@pytest.mark.impatient
@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_a_store_that_is_away_is_a_503_within_two_seconds(
    private_settings: Settings, private_broker: EmbeddedBroker, how: str
) -> None:
    async with web(private_settings) as http:

        async def taken() -> bool:
            """On a machine that is busy for a second these clients give up a store that is there."""
            return (await http.post("/v1/turns", json=BODY)).status_code == 202

        await wait_until(taken)
        assert (await http.get("/readyz")).json()["status"] == "no_worker"
        pid = private_broker.pid
        assert pid
        os.kill(pid, signal.SIGSTOP if how == "frozen" else signal.SIGKILL)
        try:
            took = []
            for path in ("/v1/chat/completions", "/v1/turns"):
                began = time.monotonic()
                answer = await http.post(path, json={**BODY, "stream": True})
                took.append(time.monotonic() - began)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
                assert answer.json()["error"]["code"] == "store_unavailable"
            assert max(took) < 60, "how fast is for the limits below: no test measures this machine"
            assert (store._RESENDS + 1) * max(store._CONNECT_SECONDS, store._ANSWER_SECONDS) < 2.0
            answer = await http.get("/readyz")
            assert (answer.status_code, answer.json()) == (503, {"status": "unavailable"})
            assert (await http.get("/healthz")).status_code == 200
        finally:
            if how == "frozen":
                os.kill(pid, signal.SIGCONT)


async def test_a_look_at_the_disk_that_fails_after_its_caller_left_leaves_no_trace_in_the_log(
    private_settings: Settings, private_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    monkeypatch.setattr(store, "_PATIENCE_SECONDS", 0.2)
    opened = store.Store(private_settings)
    await opened.check_kernel_writes()
    pid = private_broker.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable):
        await opened.check_kernel_writes()
    look = opened._next_look or next(task for task in asyncio.all_tasks() if "_look_at_disk" in repr(task))
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait([look])
    del look
    gc.collect()
    await asyncio.sleep(0)
    await opened.close()
    assert not told


def test_a_server_that_is_asked_to_stop_tells_its_callers_that_their_turns_go_on(settings: Settings) -> None:
    port = free_port()
    url, command = f"http://127.0.0.1:{port}", [sys.executable, "-c", RELAY, str(port)]
    process = subprocess.Popen(command, env=environ_of(settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: relay_answers(port))
        with httpx2.Client(timeout=60) as client, ThreadPoolExecutor(1) as pool:
            request = client.build_request("POST", f"{url}/v1/chat/completions", json={**BODY, "stream": True})
            stream = client.send(request, stream=True)
            turn_url = f"{url}/v1/turns/{stream.headers['x-turn-id']}"
            events = client.send(client.build_request("GET", f"{turn_url}/events"), stream=True)
            whole = pool.submit(
                client.post, f"{url}/v1/chat/completions", json=BODY, headers={"x-conversation-id": "w"}
            )
            wait_for(lambda: len(_turns_of(settings)) == 2)
            process.terminate()
            text = stream.read().decode()
            assert '"code":"stream_lost"' in text
            assert stream.headers["x-turn-id"] in text
            assert text.endswith("data: [DONE]\n\n")
            assert "event: error\n" in events.read().decode()
            answer = whole.result()
            assert answer.status_code == 503, (process.stdout.read() if process.stdout else b"").decode()
            assert answer.json()["error"]["code"] == "stream_lost"
            assert answer.headers["x-should-retry"] == "false"
            assert process.wait(60) in {0, -signal.SIGTERM}
    finally:
        process.kill()
        process.wait(60)


async def test_a_relay_serves_more_streams_than_the_usual_limit_of_open_files_allows(settings: Settings) -> None:
    port = free_port()
    command = ["bash", "-c", 'ulimit -Sn 64; exec "$0" "$@"', sys.executable, "-c", RELAY, str(port)]
    process = subprocess.Popen(command, env=environ_of(settings), stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: relay_answers(port))
        async with httpx2.AsyncClient(base_url=url, timeout=60) as http, contextlib.AsyncExitStack() as open_streams:
            turn = (await http.post("/v1/turns", json=BODY)).json()
            readers = []  # a stream is closed when its reader is forgotten
            for _ in range(50):
                answer = await open_streams.enter_async_context(http.stream("GET", turn["events_url"]))
                readers.append(answer.aiter_lines())
                while await anext(readers[-1]) != "event: turn.queued":
                    pass
            assert answer.status_code == 200
            assert relay_answers(port), "the relay has files left for others"
    finally:
        process.kill()
        process.wait(60)


async def test_readers_that_leave_at_any_moment_leave_nothing_behind(settings: Settings) -> None:
    app = create_app(settings)
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    await wait_until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx2.AsyncClient(base_url=url, limits=httpx2.Limits(max_connections=100), timeout=60) as client:
        turn = (await client.post("/v1/turns", json=BODY)).json()

        async def read_for(seconds: float, stream: bool) -> None:
            body = {**BODY, "stream": stream}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    if stream:
                        await client.get(turn["events_url"])
                    await client.post("/v1/chat/completions", json=body)

        await asyncio.gather(*(read_for(0.02 + number * 0.01, number % 3 > 0) for number in range(40)))
        redis_ = app.state.relay.client.store.redis

        async def nobody_listens() -> bool:
            return not await redis_.pubsub_channels(f"{settings.namespace}:*")

        await wait_until(nobody_listens)
        assert (await client.get(turn["url"])).json()["state"] == "queued"
    server.should_exit = True
    await serving


async def test_one_relay_serves_more_readers_than_the_library_would_give_connections(settings: Settings) -> None:
    async with TurnsClient(settings) as client:
        request = asked("Hallo", "s")
        turn_id = await client.submitter.submit(request)
        readers = [client.reader.follow_turn(turn_id) for _ in range(120)]
        first = await asyncio.gather(*map(anext, readers))
        assert [event.kind for event in first if event] == ["turn.queued"] * 120
        for reader in readers:
            await reader.aclose()


def _turns_of(settings: Settings) -> list[bytes]:
    with redis.Redis.from_url(settings.redis_url) as store:
        return list(store.zrange(Keys(settings.namespace).due, 0, -1))


#: Every route that makes a turn, with a body it takes.
DOORS = [
    ("turns", BODY),
    ("chat/completions", BODY),
    ("responses", {**BODY, "input": "hi"}),
    ("phases", {"directory": "work", "phases": [{"id": "p", "name": "P", "type": "doc", "description": "Write."}]}),
]


async def test_a_relay_before_a_long_queue_takes_in_no_more_until_a_turn_has_ended(settings: Settings) -> None:
    (settings.root / "work").mkdir()
    async with web(replace(settings, max_unfinished=2)) as http:
        first, _ = [(await http.post("/v1/turns", json=BODY)).json()["turn_id"] for _ in range(2)]
        for path, body in DOORS:
            refused = await http.post(f"/v1/{path}", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) > 0
        assert len(_turns_of(settings)) == 2
        assert (await http.delete(f"/v1/turns/{first}")).status_code == 200
        assert (await http.post("/v1/turns", json=BODY)).status_code == 202
