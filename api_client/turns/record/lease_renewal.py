"""Renews the leases of all turns of a process in one round trip to the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.turns.record.claim import LeaseClaim

_LUA = Path(__file__).with_name("lua") / "renew_leases.lua"
#: Leases renewed per command; 250 keep the server busy for about a millisecond.
_TURNS_A_COMMAND = 250


def read_script() -> str:
    return _LUA.read_text(encoding="utf-8")


class LeaseRenewal:
    """Renews the leases of running turns over a separate connection. Not thread-safe."""

    def __init__(self, settings: Settings, store: redis.Redis) -> None:
        self._keys = Keys(settings.namespace)
        self._lease_ms = int(settings.lease_seconds * 1000)
        self._redis = store
        self._script = store.register_script(read_script())

    def load_script(self) -> None:
        """Connect and load the Lua script, so that the first renewal is fast. Raises ``RedisError``."""
        self._redis.script_load(self._script.script)

    def renew_leases(self, claims: Sequence[LeaseClaim]) -> dict[str, tuple[str, str]]:
        """Renew the leases of several claimed turns in one round trip, and return the store's reply by claim token.

        Each reply is ``held``, ``fenced`` or ``damaged``, with the reason why the turn must stop, or an empty string.
        Raises ``RedisError`` if the store does not answer or refuses writes; the state of the leases is then unknown.
        """
        try:
            return self._send_renewals(claims)
        except NoScriptError:  # the server was restarted, or has never run the command
            return self._send_renewals(claims, load=True)

    def _send_renewals(self, claims: Sequence[LeaseClaim], *, load: bool = False) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        groups = [claims[at : at + _TURNS_A_COMMAND] for at in range(0, len(claims), _TURNS_A_COMMAND)]
        with self._redis.pipeline(transaction=False) as pipe:
            send: Any = pipe.execute_command
            if load:
                send("SCRIPT", "LOAD", self._script.script)
            for group in groups:
                words: list[Any] = [part for claim in group for part in (claim.turn.turn_id, claim.token)]
                names = [self._keys.due, *(self._keys.turn(claim.turn.turn_id) for claim in group)]
                send("EVALSHA", self._script.sha, len(names), *names, self._lease_ms, *words)
            replies: list[Any] = pipe.execute(raise_on_error=False)[load:]
        for group, reply in zip(groups, replies, strict=True):
            if isinstance(reply, RedisError):
                raise reply
            said = [part.decode() for part in reply]
            found |= zip((claim.token for claim in group), zip(said[::2], said[1::2], strict=True), strict=True)
        return found
