"""ASGI layers around the application.

Every request gets an id, every fault an answer, every answer a log line; and ``HEAD`` works wherever there is ``GET``.
"""

from __future__ import annotations

import asyncio
import secrets
import time

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_client.web.errors import internal_error, shown_text, where
from api_client.web.relay import Traffic
from api_client.web.wire import JSON

log = structlog.get_logger(__name__)

_STREAM = b"text/event-stream"


def new_request_id() -> str:
    """A name for one request, by which its log lines are found."""
    return f"req-{secrets.token_hex(12)}"


class RequestId:
    """ASGI middleware: sets ``x-request-id``, binds it to the log, and turns a fault into a 500 that says nothing."""

    def __init__(self, app: ASGIApp, locale: str) -> None:
        self.app = app
        self.locale = locale

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = new_request_id()
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        began, status, streams = time.monotonic(), 0, 0
        traffic: Traffic = scope["app"].state.relay.traffic

        async def send_with_id(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                traffic.answers[status] += 1
                streams = int(any(value.startswith(_STREAM) for _, value in message.get("headers", [])))
                traffic.streams += streams
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            log.info("request.abandoned")
        except Exception as fault:
            log.error("request.crashed", **where(fault))
            if status:
                raise  # an answer has begun: only a broken connection tells the client that it is not whole
            error = internal_error(self.locale)
            await JSON(error.body(), error.status)(scope, receive, send_with_id)
        finally:
            traffic.streams -= streams
            seconds = round(time.monotonic() - began, 3)
            path = shown_text(scope["path"])
            log.info("request.served", method=scope["method"], path=path, status=status, seconds=seconds)


class Head:
    """ASGI middleware: asks the application as for ``GET``, and lets it off once the answer's head is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def receive_or_leave() -> Message:
            """What the client sends; once the head is sent it is gone, as far as the application knows."""
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

        await self.app({**scope, "method": "GET"}, receive_or_leave, send_head)
