"""One procrastinate job a turn, on a queue in PostgreSQL: ``python -m`` runs its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from procrastinate import App, PsycopgConnector

from tests.lab.bench.peers.engine_url import read_url, tell_url
from tests.lab.bench.peers.ledger import AsyncLedger
from tests.lab.bench.peers.turn import play_async

_ledger = AsyncLedger()


def _build_app(url: str) -> App:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=2, max_size=10))

    @app.task(name="turn")
    async def turn(name: str, kind: str) -> None:
        await play_async(_ledger, name, kind)

    return app


async def open_client() -> Callable[[str, str], Awaitable[None]]:
    """Return what submits a turn."""
    app = _build_app(await read_url())
    await app.open_async()
    task = app.tasks["turn"]

    async def submit(name: str, kind: str) -> None:
        await task.defer_async(name=name, kind=kind)

    return submit


async def main() -> None:
    from tests.lab.bench.peers.postgres import start_postgres

    url = start_postgres()
    app = _build_app(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        tell_url(url)
        await app.run_worker_async(concurrency=50)


if __name__ == "__main__":
    asyncio.run(main())
