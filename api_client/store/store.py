"""The store client of an event loop: commands with timeouts and named errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.settings import Settings, require_store
from api_client.contract.settings.sentinels import SentinelAddress
from api_client.contract.store_refusals import find_refusal
from api_client.contract.worker_reports import WorkerReport
from api_client.store.commands import Script, Word, find_queue, load_script, turn_keys
from api_client.store.connecting import open_store
from api_client.store.connection import Connection, Listener, SingleConnection, Subscription
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: Seconds after which a caller learns that the store is down. Repeating commands is harmless.
_CONNECT_SECONDS, _ANSWER_SECONDS, _RESENDS = 0.8, 0.8, 1
#: Seconds before a command is sent again, and the errors after which it is.
_RESEND_SECONDS = 0.04
_RESENT_AFTER = (RedisConnectionError, RedisTimeoutError, ReadOnlyError)
#: Time for a disk or replicas to confirm a write, below ``_ANSWER_SECONDS``, and the number of tries.
_CONFIRM_MS = 600
_CONFIRM_TRIES = 3
#: The kernel refused a write; a server that does not sync itself answers before it knows.
_NOT_TAKEN = b"aof_last_write_status:err"
#: A write accepted this many milliseconds later proves that earlier writes reached the kernel.
_LATER_MS = 1000
_UNCONFIRMED = {
    "power": "the disk did not confirm the write within 2 seconds",
    "replicated": "too few replicas confirmed the write within 2 seconds",
}
#: Longest wait for one reply, including a disk's confirmation, in seconds.
_PATIENCE_SECONDS = 4.0


class Store:
    """A client of the Redis store for one event loop. Failed requests raise ``StoreUnavailable``.

    Frequent commands share one connection (``send_command``, ``run_command``). Other commands use a connection each
    through ``redis`` and ``await_reply``, and may block (WAIT) or return megabytes. ``troubles`` has failed
    housekeeping and its last error.
    """

    def __init__(self, settings: Settings, one: SingleConnection | None = None) -> None:
        """Create the client. ``one`` is an existing connection to share, which its owner closes."""
        self.settings = require_store(settings)
        self._sentinels = SentinelAddress.parse(self.settings.store_url)
        connect, answer = _CONNECT_SECONDS, _ANSWER_SECONDS
        self.redis = (
            one.redis if one else open_store(settings, connect_seconds=connect, answer_seconds=answer, resends=_RESENDS)
        )
        self._connection = one or Connection(settings, connect_seconds=connect, answer_seconds=answer)
        self.namespace = settings.namespace
        self.keys = Keys(settings.namespace)
        #: True if the store also holds Celery's queues, so that a command can change both atomically.
        self.has_queues = settings.has_queues
        self.troubles = dict[str, str]()
        self._queue = find_queue(settings)
        #: The next request for the state of the server's disk, which waits for the current one.
        self._next_look: asyncio.Task[bytes] | None = None
        self._look_lock = asyncio.Lock()

    async def close(self) -> None:
        await self._connection.close()
        await self.redis.aclose()

    async def await_reply(self, answer: Awaitable[Any]) -> Any:
        """Wait a few seconds for a reply of the client ``redis``, and return the reply.

        Raises ``StoreUnavailable`` for an error or a missing reply.
        """
        cancellations = _count_cancellations()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                reply = await answer
        except (RedisError, OSError, TimeoutError) as error:
            if _count_cancellations() > cancellations:
                raise asyncio.CancelledError from error
            raise to_unavailable(error) from error
        if _count_cancellations() > cancellations:
            raise asyncio.CancelledError  # redis-py can swallow it on Python 3.11, by asyncio.wait_for
        return reply

    @contextlib.contextmanager
    def tolerate_failures(self, what: str) -> Iterator[None]:
        """Log housekeeping errors in the ``with`` block instead of raising them, so that submissions do not fail.

        Raises ``StoreUnavailable`` if the store does not answer.
        """
        self.troubles.pop(what, None)
        try:
            yield
        except (StoreUnavailable, ResponseError, ValueError, TypeError, KeyError) as error:
            cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
            if not isinstance(cause, ResponseError | ValueError | TypeError | KeyError) or find_refusal(cause):
                raise
            self.troubles[what] = f"{type(cause).__name__}: {str(cause)[:160]}"
            log.error("housekeeping.failed", what=what, error=self.troubles[what])

    async def read_memory(self) -> dict[str, Any]:
        """Return the memory figures of the store's server (``INFO memory``).

        Raises ``StoreUnavailable``, or ``ResponseError`` if the store's user lacks the permission.
        """
        try:
            found: dict[str, Any] = await self.await_reply(self.redis.info("memory"))
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ResponseError):
                raise error.__cause__ from None
            raise
        return found

    async def store_fact(self, field: str, value: str) -> None:
        """Store a fact about the installation under a name such as ``GC_AT``. Raises ``StoreUnavailable``."""
        await self.await_reply(self.redis.hset(self.keys.installation, field, value))

    async def read_fact(self, field: str) -> str:
        """Return a stored fact about the installation, or an empty string. Raises ``StoreUnavailable``."""
        return (await self.await_reply(self.redis.hget(self.keys.installation, field)) or b"").decode()

    def load_command(self, path: Path) -> Script:
        return load_script(path, self.settings)

    async def run_command(
        self,
        command: Script,
        turn_id: str,
        session_id: str,
        values: dict[str, Word],
        more_keys: Sequence[str] = (),
        rest: Sequence[Word] = (),
    ) -> Any:
        """Run a Lua script on the keys of a turn and return its reply.

        ``values`` are the script's named arguments, ``rest`` the others.
        """
        keys = (*turn_keys(self.settings.namespace, turn_id, session_id, self._queue)[: command.keys], *more_keys)
        words = ("EVALSHA", command.sha, len(keys), *keys, *command.build_argv(turn_id, values, rest))
        return await self._get_reply(words, command.text)

    async def send_command(self, *words: Word) -> Any:
        """Send a command and return its raw reply. If the connection is lost, the command may be executed twice."""
        return await self._get_reply(words)

    async def read_hash(self, key: str) -> dict[bytes, bytes]:
        """Return all fields of a Redis hash, or an empty dict for a missing key. Raises ``StoreUnavailable``."""
        reply = await self.send_command("HGETALL", key)
        return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))  # RESP3, RESP2

    async def read_clock_ms(self) -> int:
        """Return the store's time in milliseconds since the epoch. Raises ``StoreUnavailable``."""
        seconds, micros = await self.send_command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Run a Lua script and return its reply. If the connection is lost, the script may be executed twice."""
        return await self._get_reply(("EVALSHA", script.sha, len(keys), *keys, *arguments), script.text)

    async def _get_reply(self, words: tuple[Word, ...], script: str = "") -> Any:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                try:
                    return await self.send_raw(*words)
                except NoScriptError:
                    if not script:
                        raise
                    await self.send_raw("SCRIPT", "LOAD", script)
                    return await self.send_raw(*words)
        except (RedisError, OSError, TimeoutError) as error:
            raise to_unavailable(error) from error

    async def send_raw(self, *words: Word) -> Any:
        """Send a command and return its reply. Raises ``RedisError`` instead of ``StoreUnavailable``."""
        try:
            return await self._connection.send_command(*words)
        except _RESENT_AFTER:
            await asyncio.sleep(_RESEND_SECONDS)
            return await self._connection.send_command(*words)

    async def open_subscription(self, listener: Listener) -> Subscription:
        """Open a pub/sub connection that passes messages to ``listener``. Raises ``RedisError``."""
        return Subscription(await self._connection.open_another(), listener)

    async def await_durability(self, turn_id: str, seq: int, at_ms: int = 0) -> None:
        """Wait until a turn's events up to ``seq`` are stored as durably as HELIX_DURABILITY demands.

        ``everysec`` needs the server's kernel, ``power`` the disk, ``replicated`` the replicas. ``at_ms`` is the time
        of the event by the store's clock, 0 for now. Raises ``StoreUnavailable`` if the confirmation is late, or the
        turn lost.
        """
        durability, copies = self.settings.durability, self.settings.replicas
        if durability == "everysec":
            await self.check_kernel_writes(at_ms)
            return
        power = durability == "power"
        wait = ("WAITAOF", 1, 0, _CONFIRM_MS) if power else ("WAIT", copies, _CONFIRM_MS)
        # Sent together, because a wait on a new connection without writes returns at once, and a server after a
        # failover may lack the turn.
        keys = keys_for_turn(self.namespace, turn_id)
        for _ in range(_CONFIRM_TRIES):
            pipe = self.redis.pipeline(transaction=False)
            pipe.set(f"{keys.due}:settled", "1", px=60_000)
            pipe.hget(keys.turn(turn_id), "seq")
            pipe.execute_command(*wait)
            if self._sentinels:  # keeps a deposed master from being promoted before it has caught up (replica_watch)
                pipe.config_set("replica-priority", 0)
            written, known, done, *_ = await self.await_reply(pipe.execute(raise_on_error=False))
            for failed in (each for each in (written, known, done) if isinstance(each, Exception)):
                raise to_unavailable(failed) from failed
            if int(known or 0) < seq:
                raise StoreUnavailable("the store lost it before it was confirmed")
            if int(done[0] if isinstance(done, list) else done) >= (1 if power else copies):
                return
        raise StoreUnavailable(_UNCONFIRMED[durability])

    async def check_kernel_writes(self, at_ms: int = 0) -> None:
        """Raise ``StoreUnavailable`` if the server cannot write to its disk, for example because the disk is full.

        The server appends to its file after the reply, so this check must be a separate command.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                if _NOT_TAKEN not in await self._look_at_disk():
                    return
        except ResponseError:
            return  # without permission the server is not ours, and syncs as its owner wants
        except (RedisError, OSError, TimeoutError) as error:
            raise to_unavailable(error) from error
        if at_ms:
            for report in (await self.read_hash(self.keys.workers)).values():
                with contextlib.suppress(ValueError):
                    if WorkerReport.from_json("", report).at * 1000 > at_ms + _LATER_MS:
                        return
        raise to_unavailable(ResponseError("MISCONF the disk is full or broken: the last writes are in memory alone"))

    async def _look_at_disk(self) -> bytes:
        """Ask the server about its disk. Callers that arrive during a request share the next request."""

        async def ask() -> bytes:
            async with self._look_lock:
                self._next_look = None
                found: bytes = await self.send_raw("INFO", "persistence")
                return found

        if self._next_look is None:
            self._next_look = asyncio.create_task(ask())
            # Callers whose patience ended no longer ask for its error.
            self._next_look.add_done_callback(lambda look: look.cancelled() or look.exception())
        return await asyncio.shield(self._next_look)


def to_unavailable(error: BaseException) -> StoreUnavailable:
    """Convert an error of the store's client to ``StoreUnavailable``, with the message of a refusal."""
    text = " ".join(str(error).split())[:160]
    return StoreUnavailable(f"{type(error).__name__}{f': {text}' if text else ''}", find_refusal(error))


def _count_cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def heed_cancellation() -> None:
    """Raise ``CancelledError`` if the store's client swallowed a cancellation of the current task."""
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError
