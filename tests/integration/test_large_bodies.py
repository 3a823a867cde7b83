"""Large bodies at a real relay: nobody waits behind another owner's, and nobody's unfinished ones shut others out."""

import asyncio
import json

import httpx2
import pytest

from tests.constants import Constants
from tests.installation import Installation, RelayProcess
from tests.support import wait_until

MB = 2**20
KEYS = tuple(letter * 40 for letter in "abc")


@pytest.fixture
def relay(installation: Installation, constants: Constants) -> RelayProcess:
    constants("api_client.web.identity.access", REQUESTS=0)
    return installation.relay(api_keys=KEYS)


def turn(text: str, model: str = "scripted", **more: object) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **more}).encode()


def caller(relay: RelayProcess, key: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=200)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return httpx2.AsyncClient(base_url=relay.url, timeout=120, headers=headers, limits=limits)


async def test_a_small_turn_is_parsed_before_the_backlog_of_another_owner(relay: RelayProcess) -> None:
    """Many keys take the parser longest; each such body is refused once it is parsed, for its model."""
    heavy = turn("x", "nope", metadata={str(number): 1 for number in range(40_000)})
    parsed = 0

    async def send(http: httpx2.AsyncClient) -> None:
        nonlocal parsed
        answer = await http.post("/v1/turns", content=heavy)
        assert answer.status_code == 404, answer.text[:300]
        parsed += 1

    async with caller(relay, KEYS[0]) as one, caller(relay, KEYS[1]) as other:
        backlog = [asyncio.create_task(send(one)) for _ in range(60)]
        await wait_until(lambda: parsed >= 3 or any(each.done() and each.exception() for each in backlog))
        before = parsed
        answer = await other.post("/v1/turns", content=turn("y" * 20_000))
        assert answer.status_code == 202
        assert parsed - before < 20, "its wait does not grow with the backlog"
        await asyncio.gather(*backlog)


async def test_bodies_of_two_keys_that_never_end_shut_no_other_owner_out(relay: RelayProcess) -> None:
    port = int(relay.url.rpartition(":")[2])
    writers = []
    for key in KEYS[:2]:
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /v1/turns HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            writer.write(f"{head}content-type: application/json\r\ncontent-length: {8 * MB}\r\n\r\n".encode())
            writer.write(b" " * (8 * MB - 1))
            writers.append(writer)
    await asyncio.gather(*(asyncio.wait_for(writer.drain(), 60) for writer in writers))
    async with caller(relay, KEYS[2]) as other:
        for size in (20_000, MB - 100):
            answer = await other.post("/v1/turns", content=turn("y" * size))
            assert answer.status_code == 202, answer.text
    for writer in writers:
        writer.close()
