"""Requests in progress at this relay, by owner: reading a body, waiting for an answer, a stream.

A request counts from the moment its owner is known until its answer has been sent, or its caller has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from api_client.web.errors import ApiError

_AGAIN_SECONDS = 1


class Busy:
    """How many requests of each owner are in progress."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    @contextmanager
    def request(self, owner: str, most: int) -> Iterator[None]:
        """One request of the owner, of which ``most`` may be in progress; 0: no limit.

        Raises:
            ApiError: 429 ``too_many_requests``.
        """
        if most and self._of[owner] >= most:
            message = f"at most {most} of your requests may be in progress at once, streams included"
            headers = {"retry-after": str(_AGAIN_SECONDS)}
            raise ApiError(429, message, code="too_many_requests", headers=headers)
        self._of[owner] += 1
        try:
            yield
        finally:
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]
