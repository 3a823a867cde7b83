"""Renewing the leases of all turns of a process in one round trip to the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from api_client.contract.keys import Keys, keys_of
from api_client.contract.settings import Settings
from api_client.turns.record.changes import Claim

_LUA = Path(__file__).with_name("lua") / "beats.lua"
#: Turns one command renews: 250 keep the server busy for about a millisecond.
_TURNS_A_COMMAND = 250


def script_text() -> str:
    """The Lua command."""
    return _LUA.read_text()


class Beats:
    """Renews leases over a connection. For one thread."""

    def __init__(self, settings: Settings, store: redis.Redis) -> None:
        self._namespace = settings.namespace
        self._lease_ms = int(settings.lease_seconds * 1000)
        self._redis = store
        self._script = store.register_script(script_text())

    def open(self) -> None:
        """Connect, and give the server the command: the first round is then as quick as any other.

        Raises ``RedisError``: the store does not answer.
        """
        self._redis.script_load(self._script.script)

    def renew(self, claims: Sequence[Claim]) -> dict[str, tuple[str, str]]:
        """Renew the leases of these claims in one round trip.

        Returns:
            By token: ``held``, ``fenced`` or ``damaged`` (the record cannot be read), and why the turn must
            stop, or empty.

        Raises:
            RedisError: the store does not answer, or takes no writes; which leases were kept, nobody knows.
        """
        try:
            return self._send(claims)
        except NoScriptError:  # a server that was restarted, or never saw it
            return self._send(claims, load=True)

    def _send(self, claims: Sequence[Claim], *, load: bool = False) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        groups = list(_commands(self._namespace, claims))
        with self._redis.pipeline(transaction=False) as pipe:
            send: Any = pipe.execute_command
            if load:
                send("SCRIPT", "LOAD", self._script.script)
            for keys, group in groups:
                words: list[Any] = [part for claim in group for part in (claim.turn.turn_id, claim.token)]
                names = [keys.due, *(keys.turn(claim.turn.turn_id) for claim in group)]
                send("EVALSHA", self._script.sha, len(names), *names, self._lease_ms, *words)
            replies: list[Any] = pipe.execute(raise_on_error=False)[load:]
        for (_, group), reply in zip(groups, replies, strict=True):
            if isinstance(reply, RedisError):
                raise reply
            said = [part.decode() for part in reply]
            found |= zip((claim.token for claim in group), zip(said[::2], said[1::2], strict=True), strict=True)
        return found


def _commands(namespace: str, claims: Sequence[Claim]) -> Iterator[tuple[Keys, Sequence[Claim]]]:
    shards: dict[Keys, list[Claim]] = defaultdict(list)
    for claim in claims:
        shards[keys_of(namespace, claim.turn.turn_id)].append(claim)
    for keys, group in shards.items():
        for start in range(0, len(group), _TURNS_A_COMMAND):
            yield keys, group[start : start + _TURNS_A_COMMAND]


# When leases may be taken: not before every holder could beat again for a whole lease (DESIGN 3). The store holds the
# time since which it has been calm, so that a reaper that has just started need not wait again: where workers restart
# more often than once per lease, nobody would ever take the turns of the others. ``Clocks`` is the part that only a
# reaper itself can see, and pure.

_CALM_LUA = Path(__file__).with_name("lua") / "calm.lua"
#: A clock that moves this much against ours between two looks has jumped, in seconds.
_JUMP_SECONDS = 1.0


class Clocks:
    """The store's clock beside ours, at each look. Both in seconds.

    ``jumped_back`` is True when the store's clock was set back since the look before: due turns then seem far away.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._last: tuple[float, float] | None = None
        self._steady_since = float("-inf")
        self.jumped_back = False

    def rest(self) -> None:
        """Nothing is looked after for a while: what the clock does meanwhile concerns nobody."""
        self._last = None
        self.jumped_back = False

    def look(self, monotonic: float, server: float) -> bool:
        """One look at the store that it answered; True when its clock did not jump within the last lease."""
        if self._last is not None:
            drift = (server - self._last[1]) - (monotonic - self._last[0])
            self.jumped_back = drift < -_JUMP_SECONDS
            if abs(drift) > _JUMP_SECONDS:
                self._steady_since = monotonic
        self._last = (monotonic, server)
        return monotonic - self._steady_since >= self._lease


@dataclass(frozen=True, slots=True)
class Looked:
    """The store's clock, and for how long it has been calm, in seconds.

    ``for_all``: this reaper looks, and the others need not. ``set_back``: the clock was set back since the last look.
    """

    now: float
    calm: float
    for_all: bool
    set_back: bool


class Calm:
    """Tells the store that a reaper looks, and asks it for how long reapers have looked without a pause."""

    def __init__(self, settings: Settings, store: Redis, worker: str) -> None:
        self._key = Keys(settings.namespace).reapers
        longest_pause = max(3 * settings.reap_seconds, settings.lease_seconds / 2)
        # Another one takes over before the pause is too long: it asks every ``reap_seconds``.
        goes_on = 1.5 * settings.reap_seconds
        self._args: list[str | int] = [int(longest_pause * 1000), worker, int(goes_on * 1000)]
        self._script = store.register_script(_CALM_LUA.read_text())

    async def look(self) -> Looked:
        """Look, if it is this reaper that looks for all.

        Raises ``RedisError``: the store does not answer, or takes no writes: what holders cannot do is not their fault.
        """
        now, since, for_all, set_back = map(int, await self._script(keys=[self._key], args=self._args))
        return Looked(now / 1000, (now - since) / 1000, bool(for_all), bool(set_back))
