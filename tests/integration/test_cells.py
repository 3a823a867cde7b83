"""Cells (docs/deploying.md): two installations behind a router that picks one by the caller's key."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from tests.installation import Installation, RelayProcess, installed, settings_on
from worker.processes.embedded_broker import EmbeddedBroker

SCRIPT = '- attempts: [[say: "Hi. <!-- STEP: done -->"]]'
KEYS = tuple(f"key-of-owner-{number:02}-0123456789" for number in range(6))


class Router:
    """A plain proxy: the hash of a connection's ``Authorization`` header names the cell that its bytes go to."""

    def __init__(self, cells: list[RelayProcess]) -> None:
        self._ports = [int(cell.url.rpartition(":")[2]) for cell in cells]

    def cell_of(self, authorization: str) -> int:
        return hashlib.sha256(authorization.encode()).digest()[0] % len(self._ports)

    async def route(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
            port = self._ports[self.cell_of(headers["authorization"])]
            answers, asks = await asyncio.open_connection("127.0.0.1", port)
            asks.write(head)
            await asyncio.gather(_pass_on(reader, asks), _pass_on(answers, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def router_before(cells: list[RelayProcess]) -> AsyncIterator[tuple[Router, str]]:
    router = Router(cells)
    server = await asyncio.start_server(router.route, "127.0.0.1", 0)
    async with server:
        yield router, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def start_cell(installation: Installation) -> RelayProcess:
    installation.play(SCRIPT, api_keys=KEYS)
    installation.worker()
    return installation.relay()


async def ask(http: httpx2.AsyncClient, key: str, text: str) -> str:
    """Ask as one owner, and return the turn's id."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Hi."
    return answer.headers["x-turn-id"]


async def turns_of(http: httpx2.AsyncClient, key: str) -> set[str]:
    listed = await http.get("/v1/turns", headers={"authorization": f"Bearer {key}"})
    return {turn["turn_id"] for turn in listed.json()["data"]}


async def test_an_owner_always_reaches_the_same_cell_and_both_cells_answer(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path / "a") as first,
        EmbeddedBroker(tmp_path / "b") as second,
        installed(settings_on(first, tmp_path / "cell-a")) as a,
        installed(settings_on(second, tmp_path / "cell-b")) as b,
    ):
        cells = [start_cell(a), start_cell(b)]
        async with (
            router_before(cells) as (router, url),
            httpx2.AsyncClient(base_url=url, timeout=120, headers={"connection": "close"}) as routed,
            httpx2.AsyncClient(base_url=cells[0].url, timeout=120) as at_a,
            httpx2.AsyncClient(base_url=cells[1].url, timeout=120) as at_b,
        ):
            asked_for = {key: {await ask(routed, key, f"{text} of {key}") for text in ("one", "two")} for key in KEYS}
            for key, turn_ids in asked_for.items():
                own = router.cell_of(f"Bearer {key}".lower())
                assert await turns_of(routed, key) == turn_ids
                assert [await turns_of(cell, key) for cell in (at_a, at_b)] == [turn_ids, set()][:: 1 - 2 * own]
            assert {router.cell_of(f"Bearer {key}".lower()) for key in KEYS} == {0, 1}
