"""A real server over a fake client, and the official client for it."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
import uvicorn

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from tests.accounts import disagreements
from tests.integration.engine import Bench
from tests.support import wait_for
from tests.unit.web.fake import FakeTurns, app_with

Serve = Callable[..., str]


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    """The engine on the real store, without Celery; at the end its counters are what the logs say."""
    async with TurnsClient(settings) as client:
        made = Bench(replace(settings, transient_delay_seconds=0.01), client)
        yield made
        made.close()
        assert disagreements(settings) == {}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a real server over a fake client; returns its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(turns: FakeTurns, **settings: Any) -> str:
        config = uvicorn.Config(app_with(turns, **settings), port=0, log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        wait_for(lambda: server.started)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(60)


def sync_client(url: str, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", **more)


def async_client(url: str, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", **more)
