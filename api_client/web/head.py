"""``HEAD`` wherever there is ``GET``: the same answer without its body. A stream's head is its beginning."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
