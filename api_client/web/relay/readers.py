"""Readers of turns through this relay, and what follows when the last reader of a page leaves.

Stop in Open WebUI and a crash of Open WebUI look the same: the connection closes. So a turn is cancelled only when
nobody has come back to it for a while.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from api_client.client import TurnsClient
from api_client.contract.issues import StoreUnavailable, TurnNotFound
from api_client.contract.turn import TurnRequest
from api_client.web.bodies.ask import USER_MESSAGE
from api_client.web.errors import ApiError

log = structlog.get_logger(__name__)


class Readers:
    """The readers of one relay. ``grace_seconds`` 0: a turn is never cancelled because its reader left."""

    def __init__(self, client: TurnsClient, grace_seconds: float) -> None:
        self._client = client
        self._grace_seconds = grace_seconds
        self._reading: Counter[str] = Counter()
        self._stops: dict[str, asyncio.Task[None]] = {}  # a cancel that comes unless somebody reads the turn again

    def here(self, turn_id: str) -> bool:
        """True while somebody reads the turn through this relay."""
        return self._reading[turn_id] > 0

    @contextmanager
    def reading(self, turn_id: str) -> Iterator[None]:
        """Somebody reads the turn: a stop that was to come is cancelled."""
        self._reading[turn_id] += 1
        if stop := self._stops.pop(turn_id, None):
            stop.cancel()
            log.info("stop.called_off", turn_id=turn_id)
        try:
            yield
        finally:
            self._reading[turn_id] -= 1
            if not self._reading[turn_id]:
                del self._reading[turn_id]

    def left(self, turn_id: str, owner: str) -> None:
        """The reader of a page left before the end. Unless somebody reads the turn again in time, it is cancelled."""
        if self._grace_seconds and not self.here(turn_id) and turn_id not in self._stops:
            self._stops[turn_id] = asyncio.create_task(self._stop(turn_id, owner))

    async def moved_on(self, turn_id: str, request: TurnRequest) -> None:
        """Something else is asked in the chat: its earlier turns that nobody reads are cancelled now.

        That are those that were stopped, and those whose stream was lost, with this relay or another. Two models that
        answer the same message are both left alone.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        for earlier in await self._client.sessions.unfinished(turn_id, request.session_id):
            stopped = self._stops.pop(earlier, None)
            if stopped:
                stopped.cancel()
            elif not await self._unread(earlier, request):
                continue
            await self._client.canceller.cancel(earlier, owner=request.owner)
            log.info("stop.moved_on", turn_id=earlier)

    async def _unread(self, turn_id: str, request: TurnRequest) -> bool:
        """Return whether nobody reads a turn that a page asked for, about another message."""
        if self.here(turn_id):
            return False
        with suppress(TurnNotFound):
            asked = (await self._client.reader.get(turn_id, owner=request.owner)).request.metadata.get(USER_MESSAGE)
            ours = request.metadata.get(USER_MESSAGE)
            return bool(asked and ours) and asked != ours and not await self._client.reader.followers(turn_id)
        return False

    def close(self) -> None:
        """Cancel every stop that is to come: the relay ends, the turns go on."""
        for stop in self._stops.values():
            stop.cancel()
        self._stops.clear()

    async def _stop(self, turn_id: str, owner: str) -> None:
        await asyncio.sleep(self._grace_seconds)
        self._stops.pop(turn_id, None)
        try:
            if await self._client.reader.followers(turn_id):
                return  # through another relay, or in a terminal
            await self._client.canceller.cancel(turn_id, owner=owner)
        except StoreUnavailable as error:
            log.warning("stop.failed", turn_id=turn_id, error=type(error).__name__)
            return
        log.info("stop.cancelled", turn_id=turn_id)


# Wrong keys, by address: after ten in a minute there is one every six seconds.
#
# A key that an address has sent before does not count: a client with an old key is answered as ever, and so is one
# whose address somebody else has too.
#
# What is remembered is bounded. Addresses that find no room share one place, and so slow each other down.

_MOST_AT_ONCE, _SECONDS_EACH = 10, 6.0
_MOST_ADDRESSES, _MOST_KNOWN = 1_024, 8_192
_OTHERS = ""


class Guesses:
    """The wrong keys of all addresses; ``clock`` in seconds. IPv6 addresses count by their network of 64 bits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}  # when an address may again be wrong as often as at first
        self._known: dict[tuple[str, str], None] = {}  # addresses, and the hashes of keys that they have sent

    def require(self, address: str, key_hash: str = "") -> None:
        """Let the address try a key; without its hash it counts as a new one.

        Raises:
            ApiError: 429 ``too_many_guesses``.
        """
        if key_hash and (network_of(address), key_hash) in self._known:
            return
        if seconds := math.ceil(self.wait(address)):
            message = f"too many wrong keys came from here; try again in {seconds} s"
            raise ApiError(429, message, code="too_many_guesses", headers={"retry-after": str(seconds)})

    def tried(self, address: str, key_hash: str, *, wrong: bool) -> None:
        """The address sent a key, and was answered."""
        known = (network_of(address), key_hash)
        if wrong and known not in self._known:
            self.wrong(address)
        self._known.pop(known, None)
        self._known[known] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0: now."""
        ahead = self._full.get(self._place(address), 0.0) - self._clock()
        return max(0.0, ahead + _SECONDS_EACH - _MOST_AT_ONCE * _SECONDS_EACH)

    def wrong(self, address: str) -> None:
        """Count a wrong key of this address."""
        place, now = self._place(address), self._clock()
        self._full[place] = max(self._full.get(place, now), now) + _SECONDS_EACH

    def _place(self, address: str) -> str:
        place = network_of(address)
        if place in self._full:
            return place
        if len(self._full) >= _MOST_ADDRESSES:
            now = self._clock()
            self._full = {known: full for known, full in self._full.items() if full > now}
        return place if len(self._full) < _MOST_ADDRESSES else _OTHERS


def network_of(address: str) -> str:
    """Return what counts as one address: of IPv6 a network of 64 bits."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
