"""The state of a running relay, which its routes share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar, cast

from fastapi import Depends
from starlette.requests import Request

from api_client.api_keys import ApiKeyring
from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.settings import Settings
from api_client.oidc.provider import OidcProvider
from api_client.web.errors import ApiError
from api_client.web.relay.key_guesses import KeyGuesses
from api_client.web.relay.turn_readers import TurnReaders

#: Packs a turn's export (``history.export_turn``) into a ZIP archive for a bug report.
BundleBuilder: TypeAlias = Callable[[dict[str, Any]], bytes]
_AGAIN_SECONDS = 1
_T = TypeVar("_T")


class RequestCounter:
    """Counts the requests in progress of each owner, and limits their number."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextmanager
    def count_request(self, owner: str, most: int) -> Iterator[None]:
        """Count a request of an owner during the ``with`` block. At most ``most`` may run at once (0: no limit).

        Raises ``ApiError``: 429 ``too_many_requests``.
        """
        if most and self._counts[owner] >= most:
            message = f"at most {most} of your requests may be in progress at once, streams included"
            headers = {"retry-after": str(_AGAIN_SECONDS)}
            raise ApiError(429, message, code="too_many_requests", headers=headers)
        self._counts[owner] += 1
        try:
            yield
        finally:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]


@dataclass(slots=True)
class Traffic:
    """Counts the relay's responses since its start by HTTP status, and its open event streams."""

    responses: Counter[int] = field(default_factory=Counter)
    open_streams: int = 0


class RelayStopping(HelixError):
    """Raised when the relay stops while a request follows a turn. The turn continues."""

    code = "stream_lost"


class StopSignal:
    """Tells all waiting requests of a relay that the relay stops."""

    def __init__(self) -> None:
        self._is_set = False
        self._waits: set[asyncio.Timeout] = set()

    def set(self) -> None:
        """End all waits, now and in the future. Call this on the event loop's thread."""
        if not self._is_set:
            self._is_set = True
            for wait in self._waits:
                wait.reschedule(0)

    async def await_unless_stopped(self, step: Awaitable[_T]) -> _T:
        """Return the result of ``step``. Raises ``RelayStopping`` if the relay stops first."""
        try:
            async with asyncio.timeout(0 if self._is_set else None) as wait:
                self._waits.add(wait)
                try:
                    return await step
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if wait.expired():
                raise RelayStopping("the relay is stopping") from None
            raise


@dataclass(frozen=True, slots=True)
class Relay:
    """The state that the routes of a running relay share."""

    settings: Settings
    client: TurnsClient
    readers: TurnReaders
    keyring: ApiKeyring
    provider: OidcProvider
    build_bundle: BundleBuilder | None = None
    requests_in_progress: RequestCounter = field(default_factory=RequestCounter)
    key_guesses: KeyGuesses = field(default_factory=KeyGuesses)
    traffic: Traffic = field(default_factory=Traffic)
    stopping: StopSignal = field(default_factory=StopSignal)


def get_relay(request: Request) -> Relay:
    return cast("Relay", request.app.state.relay)


async def _relay_dependency(request: Request) -> Relay:
    return get_relay(request)


CurrentRelay = Annotated[Relay, Depends(_relay_dependency)]
