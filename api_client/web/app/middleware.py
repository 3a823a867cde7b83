"""ASGI middleware: request ids, logging, error responses, ``HEAD`` requests and headers of proxies."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import UNTRUSTED_PROXY
from api_client.web.errors import ApiError, describe_fault, internal_error, printable_text
from api_client.web.identity.access import requires_key
from api_client.web.relay.client_networks import network_of
from api_client.web.relay.relay import Relay
from api_client.web.wire import JSONResponse

log = structlog.get_logger(__name__)

_STREAM = b"text/event-stream"
_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
_NOTE_INTERVAL_SECONDS = 60.0
#: Beginnings of the headers that chats make of templates (docs/open-webui.md, docs/clients.md), and of a template.
_TEMPLATE_HEADERS, _TEMPLATE = (b"x-owui-", b"x-conversation-id"), b"{{"


def new_request_id() -> str:
    return f"req-{secrets.token_hex(12)}"


class ForwardedHeaders(ProxyHeadersMiddleware):
    """Middleware that takes the client's address and scheme from trusted proxies (HELIX_TRUSTED_PROXIES).

    An untrusted proxy is recorded for `turns doctor`.
    """

    _noted_at = float("-inf")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        peer = (scope.get("client") or ("",))[0]
        if (
            scope["type"] == "http"
            and peer not in self.trusted_hosts
            and not _FORWARDED.isdisjoint(dict(scope["headers"]))
        ):
            relay: Relay = scope["app"].state.relay
            if requires_key(relay) and time.monotonic() - self._noted_at > _NOTE_INTERVAL_SECONDS:
                self._noted_at, store = time.monotonic(), relay.client.store
                log.warning("proxy.untrusted", address=peer)
                with suppress(StoreUnavailable):
                    await store.store_fact(UNTRUSTED_PROXY, f"{peer} {time.time():.0f}")
        await super().__call__(scope, receive, send)


class RequestMiddleware:
    """Middleware that sets ``x-request-id``, logs each request and answers crashes with a bare 500.

    A ``HEAD`` request runs as ``GET`` until the head of the response is sent. A header whose template the sender left
    unfilled (``X-Owui-User-Id: {{USER_ID}}``) counts as missing: all its users, chats and tasks would be one.
    """

    def __init__(self, app: ASGIApp, locale: str) -> None:
        self.app = app
        self.locale = locale

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if not (name.startswith(_TEMPLATE_HEADERS) and value.startswith(_TEMPLATE))
        ]
        request_id = new_request_id()
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        began, status, streams = time.monotonic(), 0, 0
        relay: Relay = scope["app"].state.relay
        traffic, settings = relay.traffic, relay.settings
        # A proxy shares its connections between all its clients, so each client gets a part.
        share = settings.max_connections // 2 if settings.trusted_proxies else 0
        address = network_of(scope["client"][0] if scope.get("client") else "")

        async def send_with_id(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                traffic.responses[status] += 1
                headers = message.get("headers", [])
                streams = int(dict(headers).get(b"content-type", b"").startswith(_STREAM))
                traffic.open_streams += streams
                message["headers"] = [*headers, (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            with relay.requests_in_progress.count_request(f"address {address}", share):
                if scope["method"] == "HEAD":
                    await _serve_head(self.app, scope, receive, send_with_id)
                else:
                    await self.app(scope, receive, send_with_id)
        except ApiError as refused:
            await JSONResponse(refused.to_body(), refused.status, refused.headers)(scope, receive, send_with_id)
        except ClientDisconnect:
            log.info("request.abandoned")
        except Exception as fault:
            log.error("request.crashed", **describe_fault(fault))
            if status:
                raise  # an answer has begun: only a broken connection tells the client that it is incomplete
            error = internal_error(self.locale)
            await JSONResponse(error.to_body(), error.status)(scope, receive, send_with_id)
        finally:
            traffic.open_streams -= streams
            seconds = round(time.monotonic() - began, 3)
            path = printable_text(scope["path"])
            log.info("request.served", method=scope["method"], path=path, status=status, seconds=seconds)


async def _serve_head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    begun = asyncio.Event()

    async def receive_or_disconnect() -> Message:
        """Return the client's next message or, after the head of the response has been sent, a disconnect message."""
        if not begun.is_set():
            message = await receive()
            if message["type"] == "http.disconnect" or message.get("body") or message.get("more_body"):
                return message
            await begun.wait()
        return {"type": "http.disconnect"}

    async def send_head(message: Message) -> None:
        if begun.is_set():
            return
        await send(message)
        if message["type"] == "http.response.start":
            await send({"type": "http.response.body", "body": b""})
            begun.set()

    await app({**scope, "method": "GET"}, receive_or_disconnect, send_head)
