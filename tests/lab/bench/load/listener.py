"""One pattern subscription on a bare connection: hearing must cost every row the same, and little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis


class Listener(asyncio.Protocol):
    """Calls ``heard(channel, payload)`` for each message of a pattern."""

    def __init__(self, pattern: str, heard: Callable[[bytes, bytes], None]) -> None:
        self._pattern = pattern.encode()
        self._heard = heard
        self._reader = hiredis.Reader()
        self.ready = asyncio.Event()

    @classmethod
    async def listen(cls, host: str, port: int, pattern: str, heard: Callable[[bytes, bytes], None]) -> Listener:
        """Subscribe; returns once the server has confirmed it."""
        _, listener = await asyncio.get_running_loop().create_connection(lambda: cls(pattern, heard), host, port)
        await listener.ready.wait()
        return listener

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(hiredis.pack_command((b"PSUBSCRIBE", self._pattern)))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (message := self._reader.gets()) is not False:
            if message[0] == b"pmessage":
                self._heard(message[2], message[3])
            else:
                self.ready.set()

    def close(self) -> None:
        self._transport.close()
