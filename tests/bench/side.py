"""One side of the comparison: a broker of its own, real worker processes, and one client in this process."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

import redis

from api_client.contract.settings import Settings
from tests.bench.work import Kind, write_script
from tests.inline import offer_here
from worker.processes import programs
from worker.processes.broker import EmbeddedBroker
from worker.processes.program import Program
from worker.processes.supervisor import Supervisor


class Side(ABC):
    """One side. A broker of its own, so that its commands can be counted; used as an asynchronous context."""

    name: str

    def __init__(self, directory: Path, durability: str, log_level: str) -> None:
        offer_here()
        root = directory / self.name
        root.mkdir()
        self.broker = EmbeddedBroker(root / "broker", durability=durability)
        script = root / "agent.yaml"
        write_script(script)
        self.settings = Settings(
            root=root,
            broker_url=self.broker.url,
            store_url=self.broker.url,
            namespace="bench",
            durability=durability,
            log_level=log_level,
            models={"bench": f"inline:{script}"},
            deaf_seconds=0,  # plain workers answer no probes: after a minute they would be taken for deaf
        )
        self.store = redis.Redis.from_url(self.broker.url)
        logs = programs.state_dir(self.settings)
        self._workers = self.workers()
        self._supervisor = Supervisor([self.broker.program(), *self._workers], logs=logs)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._supervisor.start)
        self.store.config_set("auto-aof-rewrite-percentage", 0)  # a rewrite would shrink the file that is measured
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        self.store.close()
        await asyncio.to_thread(self._supervisor.stop)

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return [self._supervisor.pid(worker.name) for worker in self._workers]

    @abstractmethod
    def workers(self) -> list[Program]:
        """The worker processes to run."""

    @abstractmethod
    async def open(self) -> None:
        """Make the client."""

    @abstractmethod
    async def close(self) -> None:
        """Close the client."""

    @abstractmethod
    async def turn(self, kind: Kind) -> None:
        """Submit one turn and wait until its end was heard."""

    @abstractmethod
    async def stream(self, count: int) -> tuple[float, int]:
        """One answer in so many pieces: seconds from submit to its last piece heard, and messages heard."""
