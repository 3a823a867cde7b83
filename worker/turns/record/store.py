"""The store as a worker asks it: a pool of connections, and patience while the store is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import structlog
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from api_client.connection import QUICK_SIGN_IN
from api_client.contract.errors import SettingsError
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings, require_store
from api_client.contract.values import shards
from api_client.contract.values.sentinels import Sentinels

log = structlog.get_logger()

#: The store may be away so long before a holder gives up telling it how a run ended, in seconds.
_PATIENCE_SECONDS = 120.0
#: Between two tries, in seconds.
_PAUSE_SECONDS = 0.3
#: Every agent's writer may hold one at a time. The library's own limit (100) is below what HELIX_RUN_SLOTS may be.
_MOST_CONNECTIONS = 2**16
#: Errors of a store that is away, or full, or not the master: another time it works.
_PASSING = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, OutOfMemoryError, ReadOnlyError)


def connect(settings: Settings, *, answer_seconds: float = 5.0, resends: int = 3) -> redis.Redis:
    """A connection pool to the store. Resends are safe for every command of the ledger.

    Raises:
        SettingsError: no store is set.
    """
    backoff = ExponentialBackoff(cap=0.5, base=0.05) if resends else NoBackoff()
    options: dict[str, Any] = {
        "socket_connect_timeout": min(2.0, answer_seconds),
        "socket_timeout": answer_seconds,
        "retry": Retry(backoff, resends),
        "max_connections": _MOST_CONNECTIONS,
        **QUICK_SIGN_IN,
    }
    if sentinels := Sentinels.parse(require_store(settings).store_url):
        asked: Any = Sentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        master: redis.Redis = asked.master_for(
            sentinels.master, db=sentinels.db, password=sentinels.password or None, **options
        )
        return master
    return redis.Redis.from_url(settings.redis_url, **options)


def stored_shards(settings: Settings) -> int:
    """The number of shards of the store, which the first process writes there; 0 when the store does not answer.

    Raises:
        SettingsError: a restore of the store did not end.
    """
    key = Keys(settings.namespace).installation
    try:
        with connect(settings, answer_seconds=2.0, resends=0) as store:
            if store.hexists(key, shards.RESTORING):
                raise SettingsError(["the store is half restored: run the same `turns restore` again, then start"])
            if (stored := store.hget(key, shards.FIELD)) is None:
                pipe = store.pipeline(transaction=False)
                for trace in shards.traces(settings.namespace):
                    pipe.exists(*trace)
                store.hsetnx(key, shards.FIELD, str(shards.number_used(pipe.execute(), settings.shards)))
                stored = store.hget(key, shards.FIELD)
    except RedisError as error:
        log.warning("store.shards_unknown", error=type(error).__name__)
        return 0
    return int(str(stored, "ascii")) if isinstance(stored, bytes) else 0


def require_shards(settings: Settings) -> None:
    """Refuse to work with another number of shards than the store's; one that does not answer is not waited for.

    Raises:
        SettingsError: HELIX_SHARDS is another number, or the store is half restored; says what to do.
    """
    if number := stored_shards(settings):
        shards.require_same(number, settings.shards, settings.namespace)


class Patience:
    """How one command that is safe to repeat is repeated until the store answers; the time counts from here."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _PATIENCE_SECONDS
        self._said = ""

    def after(self, error: RedisError) -> float:
        """How long to wait before the next try, in seconds.

        Raises:
            RedisError: ``error`` itself: the store stayed away for two minutes, or refused for another reason.
        """
        # MISCONF: the disk is full, and the script was refused before its first write.
        full = isinstance(error, ResponseError) and str(error).startswith("MISCONF")
        if time.monotonic() > self._until or not (full or isinstance(error, _PASSING)):
            raise error
        said = str(error)[:80] if full else type(error).__name__
        if said != self._said:  # once, however often it is asked again
            self._said = said
            if full:
                log.warning("store.full", error=said)
            else:
                log.warning("store.away", error=said)
        return _PAUSE_SECONDS


def patiently(command: Callable[[], Any]) -> Any:
    """Repeat a command that is safe to repeat until the store answers. Raises as ``Patience.after``."""
    patience, pause = Patience(), threading.Event()
    while True:
        try:
            return command()
        except RedisError as error:
            pause.wait(patience.after(error))
