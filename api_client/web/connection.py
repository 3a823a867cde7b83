"""A client's connection: uvicorn's, which waits for a request no longer than it has to.

uvicorn itself lets a client connect and say nothing, or half a head, for ever: a few thousand of those and nobody else
gets in.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api_client.web.errors import bad_request

#: Longest time a client may take for the line and the headers of a request, as for its body (``body.BODY_SECONDS``).
HEAD_SECONDS = 30.0


class Connection(H11Protocol):
    """One connection. It is closed when a request's head is not whole within ``HEAD_SECONDS``."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is there; its first request is awaited."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Bytes came; between two idle requests only uvicorn's keep-alive counts, until the first of them."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._patience is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets the one error object too, whatever ``msg`` says."""
        body = json.dumps(bad_request("this is no valid HTTP request").body()).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        parts: tuple[Any, ...] = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(body),
            h11.EndOfMessage(),
        )
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def _await_head(self) -> None:
        self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
