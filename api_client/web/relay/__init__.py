"""The relay as its routes need it: settings, client, readers, the links it signs, and whether to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, cast
from urllib.parse import quote

import structlog
from fastapi import Depends
from starlette.requests import Request

from api_client.api_keys import Keyring
from api_client.client import TurnsClient
from api_client.contract.events import Event, TurnParked
from api_client.contract.issues import BadRequest, StoreUnavailable, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.tool_calls import Answerer
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.store.audit import HOLDER
from api_client.turns.turn_files import LinkedFile, files_of, kept_files
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
        answer the same message are both left alone. Raises ``StoreUnavailable``: the store does not answer.
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


# Wrong keys, by address: after ten in a minute there is one every six seconds. A key that an address has sent before
# does not count: a client with an old key is answered as ever, and so is one whose address somebody else has too. What
# is remembered is bounded. Addresses that find no room share one place, and so slow each other down.

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

        Raises ``ApiError``: 429 ``too_many_guesses``.
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


@lru_cache(maxsize=1024)  # a connection asks twice, and clients come again
def network_of(address: str) -> str:
    """Return what counts as one address: of IPv6 a network of 64 bits."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)


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
    keys: Keyring
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


# Links to a turn's files: each opens one file, without a key, until it expires.

#: The kind of link: a signature of one kind of link opens no other.
_FILE = "file"


async def linked_files(relay: Relay, turn_id: str, owner: str | None) -> list[LinkedFile]:
    """The turn's files, each with a link. Raises as ``TurnReader.get``."""
    turn = await relay.client.reader.get(turn_id, owner=owner)
    if not turn.success:
        return []
    attempts = await relay.client.reader.attempts(turn_id, owner=owner)
    kept = await kept_files(relay.client.snapshots, turn)
    until = int(time.time() + relay.settings.link_seconds)
    found = []
    for file in await asyncio.to_thread(files_of, relay.settings, turn, attempts, kept):
        signature = await relay.client.links.sign(_FILE, turn_id, file.path, until=until)
        link = f"/files/{turn_id}/{quote(file.path)}?until={until}&signature={signature}"
        found.append(LinkedFile(file, link, until))
    return found


async def require_link(relay: Relay, turn_id: str, path: str, until: str, signature: str) -> None:
    """Let the holder of a link through.

    Raises ``ApiError``: 403 ``link_invalid``: it belongs to another file, was changed, or has expired.
    """
    number = whole(until)
    if not await relay.client.links.holds(signature, _FILE, turn_id, path, until=number):
        message = "this link has expired, or this relay did not make it"
        raise ApiError(403, message, param="signature", code="link_invalid")


def whole(text: str) -> int:
    """The whole number that a parameter of an address is; 0 for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else 0


# Links to a question about a tool call: who holds one answers that question, once, as long as it waits.

#: The kind of link: a signature of one kind of link opens no other.
_QUESTION = "question"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question that a link is about.

    Attributes:
        turn: as it is now. parked_ms: when the turn was parked with it, in ms since the epoch.
        until: when its time is over, in seconds since the epoch.
    """

    turn: Turn
    parked_ms: int
    until: int

    @property
    def waits(self) -> bool:
        """True while it can be answered."""
        turn = self.turn
        same = turn.state is TurnState.PARKED and round(turn.parked_at * 1000) == self.parked_ms
        return same and turn.asked is not None and time.time() < self.until


async def question_link(relay: Relay, turn_id: str, event: Event) -> str:
    """The path of the link to a question that has just been asked; empty where its owner may not answer it.

    Where a link alone answers nothing it leads to the turn's page, behind the sign-in.
    """
    body = event.body
    if not isinstance(body, TurnParked) or not body.asked or body.asked.who == Answerer.OPERATOR:
        return ""
    if body.asked.who != Answerer.OWNER:
        return f"/turns/{turn_id}"
    parked, until = round(event.at * 1000), math.floor(event.at + body.timeout_seconds)
    signature = await relay.client.links.sign(_QUESTION, turn_id, str(parked), until=until)
    return f"/answer/{turn_id}?parked={parked}&until={until}&signature={signature}"


async def asked_by(relay: Relay, turn_id: str, parked: str, until: str, signature: str) -> Asked:
    """The question that a link is about, also when it waits no more.

    Raises ``BadRequest``: ``link_invalid``: this installation did not make it; noted in the audit log of a turn that
    exists. ``TurnNotFound``: the turn is no longer kept.
    """
    links, parked_ms, number = relay.client.links, whole(parked), whole(until)
    if await links.made(signature, _QUESTION, turn_id, str(parked_ms), until=number):
        return Asked(turn=await relay.client.reader.get(turn_id), parked_ms=parked_ms, until=number)
    void = BadRequest("this relay did not make this link", param="signature", code="link_invalid")
    try:
        await relay.client.reader.get(turn_id)
    except TurnNotFound:
        raise void from None
    async with relay.client.audit.noted("answer", by=HOLDER, turn_id=turn_id, detail="link"):
        raise void
