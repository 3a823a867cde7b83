"""The relay in this process, over a fake client."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI

from tests.unit.web.fake import FakeTurns, app_with, passed


@pytest.fixture
def turns() -> FakeTurns:
    """A client whose every turn passes."""
    return FakeTurns(passed("Hallo. <!-- STEP: what -->"))


@pytest.fixture
async def http(turns: FakeTurns) -> AsyncIterator[httpx2.AsyncClient]:
    async with caller(app_with(turns)) as client:
        yield client


def caller(app: FastAPI, *, host: str = "127.0.0.1", **headers: str) -> httpx2.AsyncClient:
    """A caller whose connection comes from ``host``."""
    transport = httpx2.ASGITransport(app=app, client=(host, 5000))
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765", headers=headers)
