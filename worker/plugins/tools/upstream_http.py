"""An HTTP client for MCP servers, in which a failed request does not end the SDK's session."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INTERNAL_ERROR

from api_client.tools.tool_grants import GrantEnded

#: Our own error codes: the request was not sent or was turned away; the answer was too large; a person must sign in.
NOT_SENT, TOO_LARGE, NOT_SIGNED_IN = -32_950, -32_951, -32_952
#: Statuses by which a server or a proxy before it turns a request away.
_TURNED_AWAY = frozenset({401, 403, 407, 413, 429})
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
#: Headers that describe the transferred body.
_OF_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding"})
#: Largest answer that is read.
_MOST_BYTES = 64 * 2**20


class ServerHttpClient(httpx2.AsyncClient):
    """An HTTP client that turns failed requests into JSON-RPC errors.

    An error says whether the server may have got the request.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request. Redirects to other origins are not followed, so credentials go to no other server."""
        if request.method != "POST":
            return await super().send(request, **options)
        try:
            response = await super().send(request, **options)
            if response.status_code in _TURNED_AWAY:
                await response.aclose()
                return _build_error(request, NOT_SENT, f"HTTP {response.status_code}")
            if not response.headers.get("content-type", "").lower().startswith("application/json"):
                return response
            return await _read_whole(request, response)
        except GrantEnded:
            return _build_error(request, NOT_SIGNED_IN, "the sign-in has ended")
        except (*_NOT_CONNECTED, OAuthFlowError) as error:  # a token is asked for before, or after 401
            return _build_error(request, NOT_SENT, f"{type(error).__name__}: {error}")
        except httpx2.LocalProtocolError:  # its words repeat the header, which may be a credential
            return _build_error(request, NOT_SENT, "a header of the request cannot be sent")
        except httpx2.TransportError as error:
            return _build_error(request, INTERNAL_ERROR, f"{type(error).__name__}: {error}")


@contextlib.asynccontextmanager
async def open_http(url: str, headers: Mapping[str, str], auth: httpx2.Auth | None = None) -> AsyncIterator[Any]:
    """Open the message streams of a session with the MCP server at this URL."""
    timeout = httpx2.Timeout(30.0, read=None)  # the session's own time limit counts
    async with (
        ServerHttpClient(headers=dict(headers), timeout=timeout, auth=auth) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


async def _read_whole(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    body = bytearray()
    try:
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MOST_BYTES:
                return _build_error(request, TOO_LARGE, f"the answer has more than {_MOST_BYTES} bytes")
    finally:
        await response.aclose()
    kept = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_TRANSFER]
    return httpx2.Response(response.status_code, headers=kept, content=bytes(body), request=request)


def _build_error(request: httpx2.Request, code: int, why: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": why}}
    return httpx2.Response(503, json=error, request=request)
