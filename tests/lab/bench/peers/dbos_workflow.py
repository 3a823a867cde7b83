"""One DBOS workflow a turn, each attempt a step, on a queue in PostgreSQL: ``python -m`` runs its worker."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

from dbos import DBOS, DBOSClient

from tests.lab.bench.load import work
from tests.lab.bench.peers.engine_url import read_url, tell_url
from tests.lab.bench.peers.ledger import AsyncLedger
from tests.lab.bench.peers.turn import announce_start, end_turn, play_attempt

_ledger = AsyncLedger()
_QUEUE, _VERSION = "turns", "1"
#: A twentieth of its default, which would be most of a lone turn's time.
_POLLING_SECONDS = 0.05


@DBOS.step()
async def start(name: str) -> None:
    await announce_start(_ledger, name)


@DBOS.step()
async def attempt(name: str, kind: str, number: int) -> bool:
    return await play_attempt(_ledger, name, kind, number)


@DBOS.step()
async def end(name: str, kind: str, number: int) -> None:
    await end_turn(_ledger, name, kind, number)


@DBOS.workflow(name="turn")
async def turn(name: str, kind: str) -> None:
    await start(name)
    for number in range(1, 1 + len(work.ANSWERS[kind])):
        if await attempt(name, kind, number):
            await end(name, kind, number)
            return


async def open_client() -> Callable[[str, str], Awaitable[None]]:
    """Return what submits a turn."""
    client = DBOSClient(system_database_url=_dialect(await read_url()))

    async def submit(name: str, kind: str) -> None:
        options = {"workflow_name": "turn", "queue_name": _QUEUE, "workflow_id": name, "app_version": _VERSION}
        await client.enqueue_async(options, name, kind)

    return submit


def _dialect(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def main() -> None:
    from tests.lab.bench.peers.postgres import start_postgres

    url = start_postgres()
    DBOS(
        config={
            "name": "bench",
            "system_database_url": _dialect(url),
            "application_version": _VERSION,
            "log_level": "WARNING",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    DBOS.register_queue(_QUEUE, worker_concurrency=50, polling_interval_sec=_POLLING_SECONDS)
    tell_url(url)
    threading.Event().wait()


if __name__ == "__main__":
    main()
