"""The relay as its routes need it: settings, client, readers, the links it signs, and whether to stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, cast

from fastapi import Depends
from starlette.requests import Request

from api_client.api_keys import ApiKeyring
from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.web.errors import ApiError
from api_client.web.relay import Readers
from api_client.web.relay.guesses import Guesses

#: Packs what a bug report about a turn needs, from the turn's export (``history.export``), into a ZIP archive.
Pack: TypeAlias = Callable[[dict[str, Any]], bytes]
#: When to come again while too many requests are in progress.
_AGAIN_SECONDS = 1


class Busy:
    """The requests of each owner in progress: a body is read, an answer awaited, a stream open.

    A request counts from the moment its owner is known until its answer has been sent, or its caller has left.
    """

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    @contextmanager
    def request(self, owner: str, most: int) -> Iterator[None]:
        """One request of the owner, of which ``most`` may be in progress; 0: no limit.

        Raises ``ApiError``: 429 ``too_many_requests``.
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


@dataclass(slots=True)
class Traffic:
    """The relay's traffic: answers since its start by HTTP status, and event streams that are open."""

    answers: Counter[int] = field(default_factory=Counter)
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Relay:
    """The state of a running relay. ``stopping`` is set once, when it is asked to stop.

    Attributes:
        pack: makes bundles; None: pages offer none.
        busy: requests in progress. guesses: wrong keys at the sign-in. traffic: what was served.
    """

    settings: Settings
    client: TurnsClient
    readers: Readers
    keys: ApiKeyring
    pack: Pack | None = None
    busy: Busy = field(default_factory=Busy)
    guesses: Guesses = field(default_factory=Guesses)
    traffic: Traffic = field(default_factory=Traffic)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def relay_of(request: Request) -> Relay:
    """The relay that serves this request."""
    return cast("Relay", request.app.state.relay)


async def _relay(request: Request) -> Relay:
    return relay_of(request)


RelayOf = Annotated[Relay, Depends(_relay)]
