"""A receiver of webhooks: a real HTTP server that keeps what it receives."""

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import openai

from tests.http_service import Asked, HttpService, Reply


class HookReceiver(HttpService):
    """Keeps every delivery. ``answer`` chooses the status of each reply, which is sent after ``seconds``."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.url += "/hook"
        self.taken: list[tuple[dict[str, str], str]] = []
        self.answer: Callable[[dict[str, str], str], int] = lambda headers, body: 200
        self.seconds = 0.0

    @property
    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def _reply(self, asked: Asked) -> Reply:
        time.sleep(self.seconds)  # a slow receiver
        delivery = (asked.headers, asked.body.decode())
        status = self.answer(*delivery)
        if status == 200:
            self.taken.append(delivery)
        return Reply(status, headers={"location": "/elsewhere"} if status == 302 else {})

    def kinds(self) -> Counter[str]:
        """Return how many deliveries of each kind arrived."""
        return Counter(json.loads(body)["type"] for _, body in list(self.taken))

    def unwrapped(self, secret: str) -> list[Any]:
        """Return the deliveries as parsed by OpenAI's SDK. Raises ``InvalidWebhookSignatureError`` for a bad signature.

        Raises:
            InvalidWebhookSignatureError: its verifier refuses one.
        """
        client = openai.OpenAI(api_key="any", webhook_secret=secret)
        return [client.webhooks.unwrap(body, headers) for headers, body in list(self.taken)]
