"""``python -m tests.lab.bench.watched_relay FILE PORT``: a relay that notes when and how long its loop stood still."""

import asyncio
import sys
import time
from pathlib import Path

from api_client.contract.settings import load_settings
from api_client.web.app import relay_server
from worker.logs import configure_logging

_LOOK_SECONDS, _WORTH_SECONDS = 0.002, 0.005


async def watch(file: Path) -> None:
    """Write ``monotonic seconds, seconds it stood still`` for every stall of some milliseconds."""
    with file.open("a") as out:
        last = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            if (stood := now - last - _LOOK_SECONDS) > _WORTH_SECONDS:
                print(now, stood, file=out, flush=True)
            last = now


class _Server(relay_server._Server):
    async def startup(self, sockets: object = None) -> None:
        await super().startup(None)
        self.watching = asyncio.create_task(watch(Path(sys.argv[1])))


if __name__ == "__main__":
    relay_server._Server = _Server
    settings = load_settings()
    configure_logging(settings)
    relay_server.serve_relay(settings, "127.0.0.1", int(sys.argv[2]))
