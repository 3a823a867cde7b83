"""Notes of relays for each other in the store: rates, open questions, sign-ins, links, what Open WebUI sent."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from api_client.contract.issues import StoreUnavailable
from api_client.contract.keys import Keys, keys_of
from api_client.contract.turn import TurnState
from api_client.store import Store
from api_client.store.commands import REMOVE_OWN, plain_script

# The limits of submits of an owner: turns a minute, bytes that are stored, turns that have not ended. It lives in the
# store, so that several relays share it. Rate and bytes are buckets that empty by what is submitted and fill again
# evenly: one number each, the time at which the bucket will be full again (the generic cell rate algorithm). The
# unfinished turns are a set of their ids; only when it is full is it asked which of them have ended.

_ADMIT = plain_script(Path(__file__).with_name("admit.lua"))
_MINUTE_MS = 60_000
#: An id whose turn is not there may be about to be stored; after so long its relay has died, or it joined another.
_STORED_WITHIN_MS = 60_000
#: The longest deadline, and a day.
_NOTED_MS = 8 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """The limits of an owner; 0: no limit.

    Attributes:
        per_minute: turns a minute, and at once.
        unfinished: turns that have not ended.
        stored_bytes: bytes of requests within HELIX_RETENTION_SECONDS; half of them at once.
        requests: requests in progress at a relay, streams included.
    """

    per_minute: int = 0
    unfinished: int = 0
    stored_bytes: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class NoAllowance:
    """Which limit leaves no room (``rate``, ``bytes`` or ``unfinished``), and the seconds until it may."""

    limit: str
    seconds: float


class Allowances:
    """The limits of submits of all owners. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = Keys(store.namespace)
        self._keep_ms = store.settings.retention_seconds * 1000

    async def take(
        self,
        owner: str,
        limits: OwnerLimits,
        turn_ids: Sequence[str] = (),
        *,
        count: int = 1,
        size: int = 0,
        cost: float = 1.0,
    ) -> NoAllowance | None:
        """Let the owner submit ``count`` turns of ``size`` bytes together; ``cost`` is what they take of the rate.

        Turns whose ids are known are noted as unfinished at once; for others use ``note`` when they are stored.
        """
        refusal = None
        with self._store.housekeeping("allowance"):
            refusal = await self._take(owner, limits, turn_ids, count, size, cost)
            if refusal and refusal.limit == "unfinished":
                await self._forget_ended(owner)  # if nothing is left to forget, another may just have done so
                refusal = await self._take(owner, limits, turn_ids, count, size, cost)
        return refusal

    async def note(self, owner: str, limits: OwnerLimits, turn_ids: Sequence[str]) -> None:
        """Turns of the owner were stored."""
        if limits.unfinished and turn_ids:
            at = await self._store.clock_ms()
            key = self._keys.unfinished(owner)
            await self._store.ask(self._store.redis.zadd(key, dict.fromkeys(turn_ids, at)))
            await self._store.ask(self._store.redis.pexpire(key, _NOTED_MS))

    async def _take(
        self, owner: str, limits: OwnerLimits, turn_ids: Sequence[str], count: int, size: int, cost: float
    ) -> NoAllowance | None:
        keys = [self._keys.rate(owner), self._keys.stored(owner), self._keys.unfinished(owner)]
        rate = [cost * _MINUTE_MS / limits.per_minute, _MINUTE_MS] if limits.per_minute else [0, 0]
        # Half of it at once and half as time passes is never more than all of it within the time turns are kept.
        stored = [2 * size * self._keep_ms / limits.stored_bytes, self._keep_ms] if limits.stored_bytes else [0, 0]
        args = [*rate, *stored, limits.unfinished, count, _NOTED_MS, *turn_ids]
        said, number = await self._store.run(_ADMIT, keys, args)
        if said == b"admitted":
            return None
        return NoAllowance(said.decode(), 1.0 if said == b"unfinished" else int(number) / 1000)

    async def _forget_ended(self, owner: str) -> None:
        """Take ended turns out of the owner's unfinished ones."""
        ask, redis, key = self._store.ask, self._store.redis, self._keys.unfinished(owner)
        now = await self._store.clock_ms()
        noted = {raw.decode(): at for raw, at in await ask(redis.zrange(key, 0, -1, withscores=True))}
        pipe = redis.pipeline(transaction=False)
        for turn_id in noted:
            pipe.hget(keys_of(self._store.namespace, turn_id).turn(turn_id), "state")
        states = dict(zip(noted, await ask(pipe.execute()), strict=True)) if noted else {}
        ended = [
            turn_id
            for turn_id, state in states.items()
            if state == TurnState.FINISHED.value.encode() or (not state and now - noted[turn_id] > _STORED_WITHIN_MS)
        ]
        if ended:
            await ask(redis.zrem(key, *ended))


# Which turn answers a question, as long as its asker does not have the answer: a repeat then joins that turn. One small
# string per question with a time to live. What makes two requests the same question is the caller's to say.


class OpenQuestions:
    """The questions that are being answered. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        self._keys = Keys(store.namespace)
        self._forget = store.redis.register_script(REMOVE_OWN)

    async def claim(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> str:
        """The turn that answers the question: the one of an earlier asking, else ``turn_id`` from now on."""
        key, life = self._keys.asked(owner, question), int(keep_seconds * 1000)
        earlier = await self._ask(self._redis.set(key, turn_id, nx=True, get=True, px=life))
        return earlier.decode() if earlier else turn_id

    async def replace(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> None:
        """From now on ``turn_id`` answers the question."""
        await self._ask(self._redis.set(self._keys.asked(owner, question), turn_id, px=int(keep_seconds * 1000)))

    async def forget(self, owner: str, question: str, turn_id: str) -> None:
        """The asker has the answer: asking again is a new question. Nothing happens when another turn answers it."""
        await self._ask(self._forget(keys=[self._keys.asked(owner, question)], args=[turn_id]))


# The last requests of Open WebUI, so that ``turns openwebui check`` can name its wrong settings.

#: A relay writes the same sight once in this many seconds.
_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """Features of one request of Open WebUI.

    Attributes:
        task: the header that tells background requests from messages, also when it is empty.
        chat, message, user: the chat's id, the message's, the user's.
        tools: how many tools it sent; they are never called.
    """

    task: bool
    chat: bool
    message: bool
    user: bool
    tools: int


class OpenWebUISeen:
    """The last request seen, in the store."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        self._key = Keys(store.namespace).openwebui_seen
        self._last: tuple[SeenRequest | None, float] = (None, 0.0)

    async def note(self, seen: SeenRequest) -> None:
        """Keep what was seen. Raises ``StoreUnavailable`` when the store does not answer."""
        last, at = self._last
        if seen == last and time.monotonic() - at < _EVERY_SECONDS:
            return
        fields: dict[Any, Any] = {name: int(value) for name, value in asdict(seen).items()}
        await self._ask(self._redis.hset(self._key, mapping=fields | {"at": int(time.time())}))
        self._last = (seen, time.monotonic())

    async def last(self) -> tuple[SeenRequest, float] | None:
        """The last one and its time in seconds since the epoch; None when there was none."""
        found = {name.decode(): int(value) for name, value in (await self._ask(self._redis.hgetall(self._key))).items()}
        if not found:
            return None
        had = {name: bool(found.get(name)) for name in ("task", "chat", "message", "user")}
        return SeenRequest(**had, tools=found.get("tools", 0)), float(found.get("at", 0))


# Which browser is signed in with which key: one small string per browser, with a time to live.

#: How often a sign-in is written before it is given up, and the pause between, in seconds.
_TRIES, _PAUSE_SECONDS = 3, 0.3


class SignIns:
    """The signed-in browsers. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        self._keys = Keys(store.namespace)

    async def remember(self, token: str, key_hash: str, *, keep_seconds: int) -> None:
        """The browser that has ``token`` is signed in with the key that ``key_hash`` is the hash of.

        Somebody waits for this once a day, and would have to type again: a busy store is asked for longer than usual.
        """
        for left in range(_TRIES - 1, -1, -1):
            try:
                await self._ask(self._redis.set(self._keys.browser(token), key_hash, ex=keep_seconds))
            except StoreUnavailable as error:
                if error.refusal or not left:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    async def key_of(self, token: str) -> str:
        """The hash of the key a browser is signed in with; '' for none."""
        found = await self._ask(self._redis.get(self._keys.browser(token)))
        return found.decode() if found else ""

    async def forget(self, token: str) -> None:
        """Sign a browser out."""
        await self._ask(self._redis.delete(self._keys.browser(token)))


# Links that open one thing for their holder, for a while. Their key is in the store and in no link.

_KEY_BYTES = 32


class SignedLinks:
    """Signs links and checks them. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        self._name = Keys(store.namespace).link_key

    async def sign(self, *what: str, until: int) -> str:
        """The signature of a link to ``what`` that holds until this second since the epoch."""
        return _signature(await self._key(), what, until)

    async def holds(self, signature: str, *what: str, until: int) -> bool:
        """True for the signature of a link to exactly this that has not expired."""
        return await self.made(signature, *what, until=until) and time.time() < until

    async def made(self, signature: str, *what: str, until: int) -> bool:
        """True for the signature of a link to exactly this, expired or not."""
        right = _signature(await self._key(), what, until)
        return hmac.compare_digest(right.encode(), signature.encode("utf-8", "surrogatepass"))

    async def _key(self) -> bytes:
        """The installation's key, made when there is none yet."""
        fresh = secrets.token_bytes(_KEY_BYTES)
        return await self._ask(self._redis.set(self._name, fresh, nx=True, get=True)) or fresh


def _signature(key: bytes, what: Sequence[str], until: int) -> str:
    said = "\0".join([*what, str(until)]).encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hmac.new(key, said, hashlib.sha256).digest()).rstrip(b"=").decode()
