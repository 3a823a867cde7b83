"""The store as an event loop asks it: commands with time-outs, and refusals by name."""

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
from api_client.contract.keys import Keys, keys_of
from api_client.contract.settings import Settings, require_store
from api_client.contract.settings.sentinels import Sentinels
from api_client.contract.store_refusals import refusal_of
from api_client.contract.worker_reports import WorkerReport
from api_client.store.commands import Script, Word, load_script, queue_in, turn_keys
from api_client.store.connecting import open_store
from api_client.store.connection import Connection, Listener, OneConnection, Subscription
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: A caller learns within two seconds that the store is down; repeats are harmless, see ``Submitter.submit``.
_CONNECT_SECONDS, _ANSWER_SECONDS, _RESENDS = 0.8, 0.8, 1
#: How long until a command is sent again, in seconds, and after which errors: its reply may be lost, its master gone.
_RESEND_SECONDS = 0.04
_RESENT_AFTER = (RedisConnectionError, RedisTimeoutError, ReadOnlyError)
#: How long a disk or replicas may take to confirm a write, less than ``_ANSWER_SECONDS``, and how often they are asked.
_CONFIRM_MS = 600
_CONFIRM_TRIES = 3
#: A write that the kernel did not take: a server that does not sync by itself answers before it knows.
_NOT_TAKEN = b"aof_last_write_status:err"
#: A store that takes a write this many milliseconds after another had brought that to the kernel.
_LATER_MS = 1000
_UNCONFIRMED = {
    "power": "the disk did not confirm the write within 2 seconds",
    "replicated": "too few replicas confirmed the write within 2 seconds",
}
#: Longest wait for one answer, a disk's confirmation included.
_PATIENCE_SECONDS = 4.0


class Store:
    """Connections for everybody on one event loop; who asks through it gets an answer or ``StoreUnavailable``.

    What every turn asks goes over one connection (``send``, ``change``), at a third of the processor time. The rest has
    a connection for each command, so it may wait there (WAIT), listen, or bring megabytes.

    Attributes:
        settings: with a store set. redis: the connections for the rest, for ``ask``.
        keys: the names of its keys. troubles: housekeeping that failed when it was last tried -> why.
    """

    def __init__(self, settings: Settings, one: OneConnection | None = None) -> None:
        """``one``: the only connection to ask over, which is another's to close."""
        self.settings = require_store(settings)
        self._sentinels = Sentinels.parse(self.settings.store_url)
        connect, answer = _CONNECT_SECONDS, _ANSWER_SECONDS
        self.redis = (
            one.redis if one else open_store(settings, connect_seconds=connect, answer_seconds=answer, resends=_RESENDS)
        )
        self._connection = one or Connection(settings, connect_seconds=connect, answer_seconds=answer)
        self.keys = Keys(settings.namespace)
        self.troubles = dict[str, str]()
        self._queue = queue_in(settings)

    @property
    def has_queues(self) -> bool:
        """True if Celery's queues are in the same database of the same server, so that one command changes both."""
        return self.settings.has_queues

    @property
    def namespace(self) -> str:
        """Return what every key begins with."""
        return self.settings.namespace

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()
        await self.redis.aclose()

    async def ask(self, answer: Awaitable[Any]) -> Any:
        """Wait for an answer of ``redis``, a few seconds at most.

        Raises:
            StoreUnavailable: there was none, or an error.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await answer
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(error) from error

    @contextlib.contextmanager
    def housekeeping(self, what: str) -> Iterator[None]:
        """Let the housekeeping of a submit fail: the submit goes on. The next one tries it again, and so does doctor.

        Raises ``StoreUnavailable``: the store does not answer.
        """
        self.troubles.pop(what, None)
        try:
            yield
        except (StoreUnavailable, ResponseError, ValueError, TypeError, KeyError) as error:
            cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
            # A store that refuses all writes takes no turn either, and says why.
            if not isinstance(cause, ResponseError | ValueError | TypeError | KeyError) or refusal_of(cause):
                raise
            self.troubles[what] = f"{type(cause).__name__}: {str(cause)[:160]}"
            log.error("housekeeping.failed", what=what, error=self.troubles[what])

    async def memory(self) -> dict[str, Any]:
        """The memory figures of the server (``INFO memory``).

        Raises:
            StoreUnavailable: as ``ask``. ResponseError: its user may not ask.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                found: dict[str, Any] = await self.redis.info("memory")
        except ResponseError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(type(error).__name__) from error
        return found

    async def note(self, field: str, value: str) -> None:
        """Note a fact of the installation, such as ``GC_AT``. Raises as ``ask``."""
        await self.ask(self.redis.hset(self.keys.installation, field, value))

    async def noted(self, field: str) -> str:
        """Return a noted fact of the installation; empty for none. Raises as ``ask``."""
        return (await self.ask(self.redis.hget(self.keys.installation, field)) or b"").decode()

    def command(self, path: Path) -> Script:
        """The Lua command in this file, for ``change``."""
        return load_script(path, self.settings)

    async def change(
        self, command: Script, turn_id: str, session_id: str, values: dict[str, Word], more_keys: Sequence[str] = ()
    ) -> Any:
        """Change a turn by a command that takes the turn's keys; ``values`` are its arguments. Raises as ``ask``."""
        keys = (*turn_keys(self.settings.namespace, turn_id, session_id, self._queue)[: command.keys], *more_keys)
        words = ("EVALSHA", command.sha, len(keys), *keys, *command.words(turn_id, values))
        return await self._answered(words, command.text)

    async def send(self, *words: Word) -> Any:
        """The reply to one command, as the server gives it. It may be carried out twice. Raises as ``ask``."""
        return await self._answered(words)

    async def hash(self, key: str) -> dict[bytes, bytes]:
        """A whole hash, empty where there is none. Raises as ``ask``."""
        reply = await self.send("HGETALL", key)
        return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))  # RESP3, RESP2

    async def clock_ms(self) -> int:
        """The store's clock, in milliseconds since the epoch. Raises as ``ask``."""
        seconds, micros = await self.send("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """The reply of a script that is independent. It may be carried out twice. Raises as ``ask``."""
        return await self._answered(("EVALSHA", script.sha, len(keys), *keys, *arguments), script.text)

    async def _answered(self, words: tuple[Word, ...], script: str = "") -> Any:
        """The reply to a command; to one that runs a ``script``, also where the store does not know that yet."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                try:
                    return await self._sent(words)
                except NoScriptError:
                    if not script:
                        raise
                    await self._sent(("SCRIPT", "LOAD", script))
                    return await self._sent(words)
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(error) from error

    async def asked(self, *words: Word) -> Any:
        """As ``send``, for who tells errors apart: raises ``RedisError`` itself. Waits seconds, not for ever."""
        return await self._sent(words)

    async def listen(self, listener: Listener) -> Subscription:
        """A connection that listens to channels. Raises as ``asked``."""
        return Subscription(await self._connection.another(), listener)

    async def _sent(self, words: tuple[Word, ...]) -> Any:
        try:
            return await self._connection.ask(*words)
        except _RESENT_AFTER:
            await asyncio.sleep(_RESEND_SECONDS)
            return await self._connection.ask(*words)

    async def settle(self, turn_id: str, seq: int, at_ms: int = 0) -> None:
        """Wait until the turn is kept up to its event ``seq``, as HELIX_DURABILITY says.

        With ``everysec`` the server's kernel has it, with ``power`` the disk, with ``replicated`` replicas.
        ``at_ms`` says when the event was written, by the store's clock; 0: just now.

        Raises:
            StoreUnavailable: it was not confirmed in time, or the store lost it.
        """
        durability, copies = self.settings.durability, self.settings.replicas
        if durability == "everysec":
            await self.require_taken(at_ms)
            return
        power = durability == "power"
        wait = ("WAITAOF", 1, 0, _CONFIRM_MS) if power else ("WAIT", copies, _CONFIRM_MS)
        # A write, the question for the turn and the wait go out together. On a new connection, which has written
        # nothing, a wait alone would be answered at once; and a server that took over may never have had the turn.
        keys = keys_of(self.namespace, turn_id)
        for _ in range(_CONFIRM_TRIES):
            pipe = self.redis.pipeline(transaction=False)
            pipe.set(f"{keys.due}:settled", "1", px=60_000)
            pipe.hget(keys.turn(turn_id), "seq")
            pipe.execute_command(*wait)
            if self._sentinels:  # should it be deposed, it is not promoted before it has caught up (replica_watch)
                pipe.config_set("replica-priority", 0)
            written, known, done, *_ = await self.ask(pipe.execute(raise_on_error=False))
            for failed in (each for each in (written, known, done) if isinstance(each, Exception)):
                raise unavailable(failed) from failed
            if int(known or 0) < seq:
                raise StoreUnavailable("the store lost it before it was confirmed")
            if int(done[0] if isinstance(done, list) else done) >= (1 if power else copies):
                return
        raise StoreUnavailable(_UNCONFIRMED[durability])

    async def require_taken(self, at_ms: int = 0) -> None:
        """Make sure that what was written, and answered, has reached the server's kernel: its disk may be full.

        Asked after the answer, never together with the write: the server appends to its file between the two, and
        tells then how that went. A full disk refuses the writes that follow, so one that was taken later (a worker's
        report) shows that those before it are kept.

        Raises:
            StoreUnavailable: it has not, and is gone if the server ends now.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                if _NOT_TAKEN not in await self._sent(("INFO", "persistence")):
                    return
        except ResponseError:
            return  # this user may not ask: the server is not ours, and syncs as its owner wants
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(error) from error
        if at_ms:
            for report in (await self.hash(self.keys.workers)).values():
                with contextlib.suppress(ValueError):
                    if WorkerReport.from_json("", report).at * 1000 > at_ms + _LATER_MS:
                        return
        raise unavailable(ResponseError("MISCONF the disk is full or broken: the last writes are in memory alone"))


def unavailable(error: BaseException) -> StoreUnavailable:
    """Word a failed answer of the store for callers: its own words where it refused, else the kind of failure."""
    text = " ".join(str(error).split())[:160]
    return StoreUnavailable(f"{type(error).__name__}{f': {text}' if text else ''}", refusal_of(error))


def heed_cancellation() -> None:
    """For loops that ask the store: on Python 3.11 its client can swallow a cancellation, and the loop would go on.

    Raises:
        CancelledError: the running task was cancelled.
    """
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError
