"""How a worker tells its client where the engine's server listens: by a file in the row's folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

_FILE = Path("engine-url")


def tell_url(url: str) -> None:
    """Tell the client, once the server answers. Both processes run in the row's folder."""
    part = _FILE.with_suffix(".part")
    part.write_text(url, encoding="utf-8")
    part.rename(_FILE)


async def read_url(seconds: float = 60.0) -> str:
    """The URL, once the worker has told it. Raises ``TimeoutError``."""
    async with asyncio.timeout(seconds):
        while not _FILE.exists():
            await asyncio.sleep(0.01)
    return _FILE.read_text(encoding="utf-8")
