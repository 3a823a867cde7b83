"""Rows 11, 20, 33, 34 and 38: what the other tests of the relay leave open, over the wire where that matters."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx2
import pytest

from api_client.contract.settings import Settings
from tests.installation import RelayProcess
from tests.unit.web.conftest import caller
from tests.unit.web.fake import FakeTurns, app_with, passed

MIB = 2**20


@pytest.fixture
def relay(settings: Settings) -> Iterator[RelayProcess]:
    made = RelayProcess(replace(settings, max_body_bytes=MIB))
    made.start()
    yield made
    made.kill()


def talk(relay: RelayProcess, data: bytes, more: bytes = b"") -> bytes:
    """What a client hears that sends these bytes as they are; ``more`` as far as the server takes it."""
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as client:
        client.sendall(data)
        sending = threading.Thread(target=_send, args=(client, more), daemon=True)
        sending.start()
        heard = b""
        try:
            while piece := client.recv(65_536):
                heard += piece
        except ConnectionResetError:
            pass  # it stopped reading what we still sent
        sending.join(60)
        return heard


def _send(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(data)


HEAD = b"POST /v1/turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_38_what_readers_could_read_in_two_ways_is_refused_on_the_wire(relay: RelayProcess) -> None:
    smuggled = HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/turns HTTP/1.1\r\n\r\n"
    for data in (
        smuggled,
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 0x5\r\n\r\nhello",
        b"GET /healthz\r\n\r\n",
    ):
        heard = talk(relay, data)
        assert heard.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ", b"HTTP/1.1 505 ")), (data, heard)
        assert heard.count(b"HTTP/1.1 ") == 1, "nothing behind it is taken for a request"
    assert httpx2.get(f"{relay.url}/healthz", timeout=60).status_code == 200


def test_38_a_chunk_of_two_gigabytes_is_not_waited_for(relay: RelayProcess) -> None:
    heard = talk(relay, HEAD + b"Transfer-Encoding: chunked\r\n\r\n80000000\r\n", b"a" * (4 * MIB))
    assert b" 413 " in heard.partition(b"\r\n")[0] or heard == b""
    assert httpx2.get(f"{relay.url}/healthz", timeout=60).status_code == 200


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_33_a_line_end_in_a_header_makes_no_header_of_an_answer(relay: RelayProcess, line_end: bytes) -> None:
    for name in (b"X-Request-Id", b"Idempotency-Key", b"X-Owui-Chat-Id", b"Traceparent"):
        sent = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + name + b": a" + line_end + b"X-Evil: 1\r\n\r\n"
        heard = talk(relay, sent.replace(b"HTTP/1.1\r\nHost", b"HTTP/1.1\r\nConnection: close\r\nHost"))
        assert b"x-evil" not in heard.lower(), name


async def test_33_the_id_of_an_answer_is_ours_whatever_was_sent(turns_app: httpx2.AsyncClient) -> None:
    answer = await turns_app.get(
        "/v1/models", headers=[(b"x-request-id", "ü\u202e".encode()), (b"x-request-id", b"mine")]
    )
    assert answer.headers["x-request-id"].startswith("req-")


@pytest.fixture
def turns() -> FakeTurns:
    return FakeTurns(passed("Hallo. <!-- STEP: what -->"))


@pytest.fixture
async def turns_app(turns: FakeTurns) -> object:
    async with caller(app_with(turns)) as client:
        yield client


async def test_11_controls_other_than_nul_stay_in_the_record(turns: FakeTurns, turns_app: httpx2.AsyncClient) -> None:
    text = "a\x01b\x1b[31mc\x7f\x85\u202e d"
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    assert (await turns_app.post("/v1/turns", json=body)).status_code == 202
    assert turns.submitted[0].prompt == text


async def test_20_an_address_in_a_message_is_never_asked(turns: FakeTurns, turns_app: httpx2.AsyncClient) -> None:
    """CVE class "server-side request forgery": LiteLLM's CVE-2024-6587."""
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.5)
        url = f"http://127.0.0.1:{canary.getsockname()[1]}/latest/meta-data"
        part = {"type": "image_url", "image_url": {"url": url}}
        image = {"model": "scripted", "messages": [{"role": "user", "content": [part]}]}
        told = {"messages": [{"role": "user", "content": f"![x]({url})"}], "model": "scripted", "api_base": url}
        assert (await turns_app.post("/v1/turns", json=image)).json()["error"]["code"] == "image_not_read"
        assert (await turns_app.post("/v1/turns", json=told)).status_code == 202
        with pytest.raises(TimeoutError):
            canary.accept()


@pytest.mark.parametrize(
    "turn_id",
    [
        "turn-" + "0" * 32,
        "t99999-" + "0" * 32,
        "turn-" + "0" * 31,
        "%2e%2e",
        "turn-" + "0" * 3000,
        "turn-" + "é" * 32,
        "*",
    ],
)
@pytest.mark.parametrize("path", ["", "/events", "/attempts", "/cancel"])
async def test_34_an_id_that_is_none_is_not_found_like_a_foreign_one(
    turns_app: httpx2.AsyncClient, turn_id: str, path: str
) -> None:
    method = "POST" if path == "/cancel" else "GET"
    answer = await turns_app.request(method, f"/v1/turns/{turn_id}{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) in {(404, "turn_not_found"), (404, "not_found")}
