"""A client and a worker's ledger on one store."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.store.connecting import open_blocking_store
from tests.on_loop import Ledger


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(settings) as made:
        yield made


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    """A worker's, whose leases run out soon: nobody but the test itself takes anything from it."""
    return Ledger(replace(settings, lease_seconds=0.5), "worker-1")


@pytest.fixture
def store(settings: Settings) -> redis.Redis:
    made: redis.Redis = open_blocking_store(settings)
    return made
