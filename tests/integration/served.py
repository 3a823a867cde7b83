"""A relay on a real port in this process, and what Open WebUI's page sends it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import uvicorn

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnState
from api_client.web.app.relay_server import create_app
from api_client.web.relay.relay import StopSignal
from tests.support import wait_until

HI = [{"role": "user", "content": "Hallo"}]
PAGE = {"x-owui-task": "", "x-owui-chat-id": "c1", "x-owui-message-id": "m1", "x-owui-user-message-id": "u1"}
#: Open WebUI's Regenerate: another message, for the same message of the user.
REGENERATE = {**PAGE, "x-owui-message-id": "m2"}


@dataclass
class Served:
    """A relay on a real port, and a caller of it."""

    settings: Settings
    http: httpx2.AsyncClient
    client: TurnsClient
    stopping: StopSignal

    @asynccontextmanager
    async def page(self, headers: dict[str, str], **more: Any) -> AsyncIterator[str]:
        """A stream that is open until the block ends; its turn."""
        body = {"model": "scripted", "messages": HI, "stream": True, **more}
        async with self.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()  # a name: the stream is closed when its reader is forgotten
            await anext(lines)
            yield answer.headers["x-turn-id"]

    async def turn_of(self, headers: dict[str, str], **more: Any) -> str:
        """The turn of a request whose sender leaves at once."""
        async with self.page(headers, **more) as turn_id:
            pass
        await self.nobody_reads(turn_id)
        return turn_id

    async def nobody_reads(self, turn_id: str) -> None:
        async def left() -> bool:
            return not await self.client.reader.count_followers(turn_id)

        await wait_until(left)

    async def state(self, turn_id: str) -> TurnState:
        return (await self.client.reader.read_turn(turn_id)).state

    async def waits(self, turn_id: str) -> bool:
        return await self.state(turn_id) is TurnState.QUEUED


@asynccontextmanager
async def serving(settings: Settings, models: dict[str, str] | None = None) -> AsyncIterator[Served]:
    app = create_app(replace(settings, models=models or {"scripted": "scripted"}))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=2))
    running = asyncio.create_task(server._serve())
    await wait_until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        yield Served(settings, http, app.state.relay.client, app.state.relay.stopping)
    app.state.relay.stopping.set()
    server.should_exit = True
    await running
