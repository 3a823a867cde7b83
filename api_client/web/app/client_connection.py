"""Limits the time and number of client connections, because idle clients would keep all others out."""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
from typing import Any, ClassVar, Protocol

import h11
import structlog
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from api_client.web.app.middleware import new_request_id
from api_client.web.errors import ApiError, bad_request
from api_client.web.relay.client_networks import network_of
from api_client.web.wire import JSONResponse

log = structlog.get_logger(__name__)


#: Longest time for the line and headers of a request; ``body.BODY_SECONDS`` limits the body.
HEAD_SECONDS = 30.0
FIRST_BYTE_SECONDS = 5.0
HEAD_BYTES = 16_384
#: How long a refused client may go on sending, so that it reads the refusal instead of a reset.
_LINGER_SECONDS = 5.0
_RETRY_SECONDS = 5
#: Paths that a full relay still answers, on this many further connections.
_HEALTH, _HEALTH_CONNECTIONS = ("/healthz", "/readyz"), 64


class _Proxies(Protocol):
    def __contains__(self, host: str | None, /) -> bool: ...


class ClientConnection(H11Protocol):
    """A client's connection, closed unless each request's head arrives within ``HEAD_SECONDS``.

    At the connection limit, a new connection replaces the longest idle one of the address that has the most, except
    trusted proxies.
    """

    max_connections = 4_096
    trusted_proxies: _Proxies = ()
    #: Idle connections by network, longest idle first.
    _idle: ClassVar[dict[str, dict[ClientConnection, None]]] = {}
    _head_timer: asyncio.TimerHandle | None = None
    _head_timer_seconds = 0.0
    _linger_timer: asyncio.TimerHandle | None = None

    @classmethod
    def with_limits(cls, most: int, trusted: _Proxies) -> type[ClientConnection]:
        """Create a subclass with this connection limit, which does not apply to connections of trusted proxies."""
        return type("ClientConnection", (cls,), {"max_connections": most, "trusted_proxies": trusted, "_idle": {}})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit a new connection. At the connection limit, close an idle connection or refuse the new one."""
        super().connection_made(transport)
        self._network = network_of(self.client[0] if self.client else "")
        taken = len(self.connections)
        if taken > self.max_connections and (longest := max(self._idle.values(), key=len, default=None)):
            next(iter(longest)).close_idle()
        elif taken > self.max_connections + _HEALTH_CONNECTIONS:
            self._send_refusal(_make_overload_error())
            return
        elif taken > self.max_connections:
            self.app = self._serve_health
        self._mark_idle()
        self._await_head(min(FIRST_BYTE_SECONDS, HEAD_SECONDS))

    def close_idle(self) -> None:
        self._mark_busy()
        self.connections.discard(self)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, and limit the time until the next request's head is complete."""
        if self._linger_timer is not None:
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._mark_busy()
        elif self._head_timer is None or self._head_timer_seconds != HEAD_SECONDS:
            self._await_head(HEAD_SECONDS)

    def on_response_complete(self) -> None:
        """Mark the connection as idle after a response, unless the next request has already arrived."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._mark_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._mark_busy()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with an error in the API's format."""
        self._linger_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)
        came, _ = self.conn.trailing_data
        long = len(came) > HEAD_BYTES and b"\r\n\r\n" not in came[:HEAD_BYTES]
        most = f"the line and the headers of this request are longer than {HEAD_BYTES:,} bytes"
        self._send_refusal(bad_request(most if long else "this is not a valid HTTP request"))

    def _send_refusal(self, error: ApiError) -> None:
        body, request_id = json.dumps(error.to_body()).encode(), new_request_id()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": request_id,
            **error.headers,
        }
        log.info("request.refused", request_id=request_id, status=error.status, code=error.code)
        reason = http.HTTPStatus(error.status).phrase.encode()
        parts: tuple[Any, ...] = (
            h11.Response(status_code=error.status, headers=list(headers.items()), reason=reason),
            h11.Data(body),
            h11.EndOfMessage(),
        )
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        if self._linger_timer is None:
            self.transport.close()
        elif self.transport.can_write_eof():  # not through TLS
            with contextlib.suppress(OSError):  # the client has disconnected
                self.transport.write_eof()

    async def _serve_health(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _HEALTH:
            await self.config.loaded_app(scope, receive, send)
        else:
            error = _make_overload_error()
            headers = error.headers | {"connection": "close", "x-request-id": new_request_id()}
            await JSONResponse(error.to_body(), error.status, headers)(scope, receive, send)

    def _mark_idle(self) -> None:
        if self.client and self.client[0] not in self.trusted_proxies:
            self._idle.setdefault(self._network, {})[self] = None

    def _mark_busy(self) -> None:
        waiting = self._idle.get(self._network, {})
        waiting.pop(self, None)
        if not waiting:
            self._idle.pop(self._network, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_head(self, seconds: float) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer_seconds = seconds
        self._head_timer = self.loop.call_later(seconds, self.transport.close)


def _make_overload_error() -> ApiError:
    headers = {"retry-after": str(_RETRY_SECONDS)}
    return ApiError(503, "too many connections", code="too_many_connections", headers=headers)
