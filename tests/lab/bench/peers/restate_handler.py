"""One Restate invocation a turn, each attempt journaled: ``python -m`` runs its server and its handler."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from tests.lab.bench.load import work
from tests.lab.bench.peers.engine_url import read_url, tell_url
from tests.lab.bench.peers.ledger import AsyncLedger
from tests.lab.bench.peers.turn import announce_start, end_turn, play_attempt
from tests.ports import free_port

_ledger = AsyncLedger()
_service = restate.Service("Turns")


@_service.handler()
async def play(context: restate.Context, asked: dict[str, str]) -> None:
    name, kind = asked["name"], asked["kind"]
    await context.run_typed("start", announce_start, ledger=_ledger, turn=name)
    for number in range(1, 1 + len(work.ANSWERS[kind])):
        known = {"ledger": _ledger, "turn": name, "kind": kind, "number": number}
        if await context.run_typed(f"attempt {number}", play_attempt, **known):
            await context.run_typed("end", end_turn, **known)
            return


async def open_client() -> Callable[[str, str], Awaitable[None]]:
    """Return what submits a turn."""
    http = httpx.AsyncClient(base_url=await read_url(), limits=httpx.Limits(max_connections=64), timeout=60.0)

    async def submit(name: str, kind: str) -> None:
        headers = {"idempotency-key": name}
        response = await http.post("/Turns/play/send", json={"name": name, "kind": kind}, headers=headers)
        response.raise_for_status()

    return submit


async def main() -> None:
    ingress, admin, node, handler = (free_port() for _ in range(4))
    base = Path.cwd() / "restate"
    environ = {
        **os.environ,
        "RESTATE_BASE_DIR": str(base),
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_BIND_PORT": str(node),
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
        "RESTATE_LOG_FILTER": "warn",
        "RESTATE_DISABLE_TELEMETRY": "true",
    }
    server = subprocess.Popen([os.environ["BENCH_RESTATE_SERVER"], "--no-logo"], env=environ)
    config = Config()
    config.bind, config.loglevel = [f"127.0.0.1:{handler}"], "WARNING"
    serving = asyncio.create_task(serve(restate.app(services=[_service]), config))
    async with httpx.AsyncClient(timeout=10.0) as http, asyncio.timeout(60.0):
        while True:
            if server.poll() is not None:
                raise RuntimeError("the Restate server does not start")
            try:
                uri = {"uri": f"http://127.0.0.1:{handler}"}
                (await http.post(f"http://127.0.0.1:{admin}/deployments", json=uri)).raise_for_status()
                break
            except httpx.HTTPError:
                await asyncio.sleep(0.1)
    tell_url(f"http://127.0.0.1:{ingress}")
    await serving


if __name__ == "__main__":
    asyncio.run(main())
