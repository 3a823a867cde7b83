"""A TCP or unix connection of the model proxy, with backpressure."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from typing import cast

_PIECE = 65_536
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\]")
_MOST_HOST = 253
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class ByteStream(asyncio.BufferedProtocol):
    """A TCP or unix connection that stops reading while its peer is slow. All methods run in the event loop."""

    def __init__(self, connected: Callable[[ByteStream], object] | None = None) -> None:
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_PIECE))
        self._came = bytearray()
        self._over = False
        self._gone = False
        self._broke: Exception | None = None
        self._take: Callable[[bytes], object] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._full: asyncio.Future[None] | None = None
        #: The stream that feeds this one; it pauses while this side's peer accepts no data.
        self.source: ByteStream | None = None

    async def read_piece(self) -> bytes:
        """Return some received data, or empty bytes at the end. Raises ``OSError``."""
        if not self._came and not self._over:
            self.resume_receiving()
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        if not self._came and self._broke:
            raise ConnectionError(str(self._broke)) from self._broke
        piece = bytes(self._came[:_PIECE])
        del self._came[:_PIECE]
        return piece

    async def read_head(self, most: int) -> bytes:
        """Return the received data up to the first blank line, and leave the rest to ``read_piece``.

        Raises ``OSError`` if the connection ended first, ``ValueError`` if the head is longer than ``most``.
        """
        said = b""
        while not (found := _HEAD_END.search(said)):
            if len(said) > most:
                raise ValueError(f"a head of more than {most} bytes")
            if not (piece := await self.read_piece()):
                raise ConnectionError("the service broke off")
            said += piece
        self._came[:0] = said[found.end() :]
        return said[: found.end()]

    async def write_data(self, data: bytes) -> None:
        """Send data, and wait while the peer is too slow to receive more. Raises ``OSError``."""
        self.send_data(data)
        if self._full:
            await asyncio.shield(self._full)
        if self._gone:
            raise ConnectionError("the connection is closed") from self._broke

    def send_data(self, data: bytes) -> None:
        """Send data without waiting. A slow peer pauses ``source``, the connection from which the data comes."""
        if data and self._transport and not self._transport.is_closing():
            self._transport.write(data)

    def forward_to(self, take: Callable[[bytes], object]) -> None:
        """From now on, pass all received data to the callback ``take``. An empty piece marks the end."""
        self._take = take
        if self._came:
            piece, self._came = bytes(self._came), bytearray()
            take(piece)
        if self._over:
            take(b"")
        self.resume_receiving()

    def pause_receiving(self) -> None:
        """Stop receiving data until ``resume_receiving`` is called."""
        if self._transport and not self._over:
            self._transport.pause_reading()

    def resume_receiving(self) -> None:
        """Receive data again after ``pause_receiving``."""
        if self._transport and not self._over and not self._transport.is_closing():
            self._transport.resume_reading()

    def keep_idle(self, spoilt: Callable[[ByteStream], object]) -> bool:
        """Keep the connection open for reuse, and return whether it is usable.

        ``spoilt`` is called if data or the end arrives.
        """
        if self._came or self._over or self._transport is None or self._transport.is_closing():
            return False
        self.source = None
        self.forward_to(lambda _: spoilt(self))
        return True

    def reuse(self) -> ByteStream:
        """Take this idle connection for a new request, so that ``read_piece`` returns its data again."""
        self._take = None
        return self

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt the connection with TLS. Raises ``OSError`` if the certificate is not valid for ``host``."""
        loop, plain = asyncio.get_running_loop(), self._transport
        self.resume_receiving()
        self._transport = await loop.start_tls(cast("asyncio.Transport", plain), self, context, server_hostname=host)

    def end_sending(self) -> None:
        """Tell the peer that no more data will be sent. Data can still be received."""
        with contextlib.suppress(OSError):
            if self._transport and self._transport.can_write_eof():
                self._transport.write_eof()

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._connected:
            self._connected(self)

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        piece = bytes(self._buffer[:size])
        if self._take:
            self._take(piece)
            return
        self._came += piece
        self._wake_reader()
        if len(self._came) >= _PIECE:
            self.pause_receiving()

    def eof_received(self) -> bool:
        self._handle_end()
        return not (self._transport and self._transport.get_extra_info("sslcontext"))  # TLS has no half-closed state

    def connection_lost(self, error: Exception | None) -> None:
        self._gone, self._broke = True, error
        self.resume_writing()
        self._handle_end()

    def pause_writing(self) -> None:
        self._full = self._full or asyncio.get_running_loop().create_future()
        if self.source:
            self.source.pause_receiving()

    def resume_writing(self) -> None:
        if self._full and not self._full.done():
            self._full.set_result(None)
        self._full = None
        if self.source:
            self.source.resume_receiving()

    def _handle_end(self) -> None:
        if not self._over:
            self._over = True
            if self._take:
                self._take(b"")
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)
