"""A receiver of webhooks: a real HTTP server that keeps what it is sent."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import openai


class HookReceiver:
    """Keeps every delivery it took. ``answer`` says with which status one is answered."""

    def __init__(self) -> None:
        self.taken: list[tuple[dict[str, str], str]] = []
        self.answer: Callable[[dict[str, str], str], int] = lambda headers, body: 200
        self.paths: list[str] = []
        self.seconds = 0.0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.paths.append(self.path)
                time.sleep(receiver.seconds)
                status = receiver.answer(headers, body)
                if status == 200:
                    receiver.taken.append((headers, body))
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kinds(self) -> Counter[str]:
        """How often each kind was taken."""
        return Counter(json.loads(body)["type"] for _, body in list(self.taken))

    def unwrapped(self, secret: str) -> list[Any]:
        """What OpenAI's SDK makes of each delivery.

        Raises:
            InvalidWebhookSignatureError: its verifier refuses one.
        """
        client = openai.OpenAI(api_key="any", webhook_secret=secret)
        return [client.webhooks.unwrap(body, headers) for headers, body in list(self.taken)]
