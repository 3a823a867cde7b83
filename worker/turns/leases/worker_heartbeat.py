"""A worker's heartbeat: whether it still takes messages, for its supervisor (a file) and operators (the store).

Measured and reported elsewhere (celery #8030 and others): after a broker outage a worker can be alive, and answer, and
consume nothing. ``Liveness`` is the pure rule; ``WorkerHeartbeat`` looks, and publishes a probe where no message waits.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from redis.exceptions import RedisError, ResponseError

from api_client.contract.counters import label
from api_client.contract.keys import Keys
from api_client.contract.offered import offered_validators
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.values.worker_reports import WorkerReport, there, worker_of
from worker.files.spreading import spread
from worker.runners.ability import Ability
from worker.turns.leases.host import Host
from worker.turns.record.ledger import Ledger
from worker.turns.record.store import connect

log = structlog.get_logger()

#: Longest time between two beats, between two reports to operators, and between two looks at the queues, in seconds.
_BEAT_SECONDS, _REPORT_SECONDS, _QUEUES_SECONDS = 2.0, 5.0, 15.0
#: Reports of dead workers stay for this long, in seconds.
_FORGET_SECONDS = 86_400.0


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("helix-turns")
    return ""


_VERSION = _version()


@dataclass(slots=True)
class Liveness:
    """Tells a stalled worker from one that has nothing to do, or no slot free. Pure; times are monotonic seconds.

    A worker is stalled when messages have waited and a slot has been free for ``limit`` seconds without a pause, and it
    took none of them. A look that the broker did not answer says nothing, so the time starts again.
    """

    limit: float
    _taken: int = -1
    _since: float | None = None

    def look(self, now: float, *, taken: int, free: int, waiting: int | None) -> bool:
        """One look; True when the worker is stalled.

        ``taken`` counts messages since the start, ``free`` slots; ``waiting`` messages, None when the broker is away.
        """
        if taken != self._taken or free <= 0 or not waiting:
            self._taken, self._since = taken, None
            return False
        if self._since is None:
            self._since = now
        return bool(self.limit) and now - self._since >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a worker process does: its queues, how many messages it took, and a queue's slots, in all and free.

    ``lease_round`` gives the longest round of lease renewals of the last minute, in seconds. ``took_at`` gives when a
    turn was last taken, in seconds since the epoch, 0 for never. ``obey`` gets an operator's order (``WorkerOrder``, or
    empty) with each beat, and answers whether the worker takes no new turns.
    ``loop_blocked`` gives the longest time of the last minute that the loop did not look around, in seconds.
    """

    name: str
    queues: tuple[str, ...]
    taken: Callable[[], int]
    slots: Callable[[str], int]
    free: Callable[[str], int]
    lease_round: Callable[[], float]
    took_at: Callable[[], float]
    obey: Callable[[str], bool]
    loop_blocked: Callable[[], float]


class WorkerHeartbeat:
    """A thread that looks every few seconds."""

    def __init__(
        self,
        settings: Settings,
        work: Work,
        host: Host,
        ability: Ability,
        probe: Callable[[str], None],
        ready_file: Path | None,
    ) -> None:
        self._settings = settings
        self._work = work
        self._host = host
        self._ability = ability
        self._probe = probe
        self._ready_file = ready_file
        self._liveness = Liveness(settings.stalled_seconds)
        limit = settings.stalled_seconds or 60.0
        self._beat_seconds = min(_BEAT_SECONDS, limit / 8)
        self._report_seconds = min(_REPORT_SECONDS, limit / 8)
        self._queues_seconds = min(_QUEUES_SECONDS, limit / 4)
        self._store = connect(settings, answer_seconds=2.0, resends=0)
        self._broker = connect(replace(settings, store_url=settings.broker_url), answer_seconds=2.0, resends=0)
        self._lists = {queue: f"{settings.namespace}:celery:{queue}" for queue in work.queues}
        self._workers = Keys(settings.namespace).workers
        self._alive = Keys(settings.namespace).alive
        self._sign: Any = self._store.pubsub()  # type: ignore[no-untyped-call]
        self._ended = Keys(settings.namespace).ended_workers
        self._report = WorkerReport(host=socket.gethostname(), queues=work.queues)
        self._orders, self._ordered = Keys(settings.namespace).orders, ""
        self._started, self._ahead = time.time(), 0.0  # the store's clock less ours, since the last report
        self._sessions_dir = settings.sessions_dir
        self._sessions = ""
        self._queues_seen_at = self._reported_at = float("-inf")
        self._stalled = False
        self._reported: tuple[object, ...] = ()
        self._closing = threading.Event()
        self._kept_at = float("-inf")
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and take the worker off the list; for a day it stays on that of workers that ended."""
        self._closing.set()
        self._sign.close()
        try:
            last = replace(self._report, at=self._by_the_store(time.time()))
            self._store.hset(self._ended, self._work.name, last.to_json())
            self._store.expire(self._ended, int(_FORGET_SECONDS))
            self._store.hdel(self._workers, self._work.name)
            self._store.hdel(self._orders, self._work.name)
        except RedisError as error:
            log.info("heartbeat.not_signed_off", error=type(error).__name__)

    def _beat(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:
                # Without this thread its supervisor would take the worker for dead.
                log.exception("heartbeat.look_failed")
            self._closing.wait(self._beat_seconds)

    def look(self) -> None:
        """Look once: the mark for the supervisor is renewed, or removed when the worker is stalled.

        The store is asked for little more than orders: thousands of idle workers must cost it nothing.
        """
        sick, now, models = self._host.watch(), time.monotonic(), self._ability.watch()
        quiet = self._work.obey(self._order())
        free = {queue: 0 if sick or quiet else self._work.free(queue) for queue in (RUN_QUEUE, CHECK_QUEUE)}
        if now - self._queues_seen_at >= self._queues_seconds:
            self._queues_seen_at = now
            self._look_at_queues(free)
        self._mark(stalled=self._stalled)
        said = (self._stalled, sick, quiet, models)
        if now - self._reported_at >= self._report_seconds or self._reported != said:
            if self._reported[3:] != (models,):
                self._compare()
            self._reported_at, self._reported = now, said
            self._send_report(free, sick, quiet)

    def _order(self) -> str:
        """What an operator ordered; the last order while the store is away."""
        try:
            found: bytes | None = self._store.hget(self._orders, self._work.name)  # type: ignore[assignment]
        except RedisError as error:
            log.info("heartbeat.store_away", error=type(error).__name__)
        else:
            self._ordered = (found or b"").decode()
        return self._ordered

    def _look_at_queues(self, free: Mapping[str, int]) -> None:
        """See whether messages wait that this worker should take; with none, probes make silence mean something."""
        work, waiting = self._work, self._waiting()
        slots = sum(free.values())
        self._stalled = self._liveness.look(time.monotonic(), taken=work.taken(), free=slots, waiting=waiting)
        if self._stalled:
            log.error("worker.stalled", worker=work.name, waiting=waiting, free=slots)
        if waiting == 0:
            for queue in (queue for queue, number in free.items() if number):
                self._probe(queue)

    def _mark(self, *, stalled: bool) -> None:
        if self._ready_file:
            try:
                self._ready_file.unlink(missing_ok=True) if stalled else self._ready_file.touch()
            except OSError as error:
                log.warning("heartbeat.not_marked", error=str(error))

    def _waiting(self) -> int | None:
        """How many messages wait in queues that have a free slot here; None when the broker is away."""
        try:
            lengths: list[Any] = [self._broker.llen(name) for q, name in self._lists.items() if self._work.free(q)]
        except RedisError as error:
            log.info("heartbeat.broker_away", error=type(error).__name__)
            return None
        return int(sum(lengths))

    def _send_report(self, free: Mapping[str, int], sick: str, quiet: bool) -> None:
        self._sessions = self._sessions or mark_of(self._sessions_dir)
        try:
            seconds, micros = self._store.time()
        except RedisError as error:
            log.info("heartbeat.store_away", error=type(error).__name__)
            return
        self._ahead = seconds + micros / 1e6 - time.time()
        self._report = WorkerReport(
            at=self._by_the_store(time.time()),
            started_at=self._by_the_store(self._started),
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_VERSION,
            queues=self._work.queues,
            slots=self._work.slots(RUN_QUEUE),
            free=free[RUN_QUEUE],
            check_slots=self._work.slots(CHECK_QUEUE),
            check_free=free[CHECK_QUEUE],
            stalled=self._stalled,
            sick=sick,
            quiet=quiet,
            lease_round=round(self._work.lease_round(), 3),
            took_at=self._by_the_store(self._work.took_at()),
            loop_blocked=round(self._work.loop_blocked(), 3),
            sessions=self._sessions,
            validators=offered_validators(),
            models=self._ability.models,
            cannot=dict(self._ability.cannot),
        )
        try:
            self._store.hset(self._workers, self._work.name, self._report.to_json())
            if time.monotonic() - self._kept_at > _FORGET_SECONDS / 24:
                self._forget()
                self._store.expire(self._workers, int(_FORGET_SECONDS))
                self._kept_at = time.monotonic()
            self._sign.close()
        except ResponseError as error:  # a full disk, for example
            log.info("heartbeat.store_refuses", error=str(error)[:80])
            self._live_without_writing()
        except RedisError as error:
            log.info("heartbeat.store_away", error=type(error).__name__)

    def _live_without_writing(self) -> None:
        """Show a store that takes no writes that this worker lives (``api_client.workers.reports``)."""
        self._reported_at = float("-inf")  # the first report that it takes again is sent at once
        self._sign.close()
        try:
            self._sign.subscribe(self._alive(f"{self._report.at}:{self._work.name}"))
        except RedisError as error:
            log.info("heartbeat.store_away", error=type(error).__name__)

    def _compare(self) -> None:
        """Say that other workers see another HELIX_ROOT; have turns announced that only this worker can run."""
        self._sessions = self._sessions or mark_of(self._sessions_dir)
        try:
            found: dict[bytes, bytes] = self._store.hgetall(self._workers)  # type: ignore[assignment]
            reports = there(WorkerReport.from_json(name.decode(), text) for name, text in found.items())
            others = [each for each in reports if each.worker != worker_of(self._work.name)]
            if apart := sorted({each.host for each in others if each.sessions not in {"", self._sessions}}):
                log.error("sessions.not_shared", hosts=apart, hint="all workers need one HELIX_ROOT")
            mine = self._ability.models
            if others and not all(any(not each.cannot_run(label(name)) for each in others) for name in mine):
                ledger = Ledger(self._settings, self._work.name, self._store)
                for shard in range(self._settings.shards):
                    ledger.recall(shard)
        except (RedisError, ValueError) as error:
            log.info("heartbeat.not_compared", error=type(error).__name__)

    def _by_the_store(self, at: float) -> float:
        """Our time by the store's clock, which all readers of reports look at: a host's clock may be wrong."""
        return round(at + self._ahead, 3) if at else 0.0

    def _forget(self) -> None:
        """Take off the lists who died or ended a day ago. Raises ``RedisError``."""
        for key in (self._workers, self._ended):
            listed: dict[bytes, bytes] = self._store.hgetall(key)  # type: ignore[assignment]
            now = self._by_the_store(time.time())
            gone = [name for name, report in listed.items() if now - _reported_at(report) > _FORGET_SECONDS]
            if gone:
                self._store.hdel(key, *gone)


def _reported_at(report: bytes) -> float:
    with contextlib.suppress(ValueError):
        return WorkerReport.from_json("", report).at
    return 0.0


def mark_of(sessions_dir: Path) -> str:
    """A name for the folder of sessions, the same for every worker that sees this folder; empty if it has none yet."""
    file = sessions_dir / ".installation"
    try:
        sessions_dir.mkdir(parents=True, exist_ok=True)
        spread(sessions_dir)
        draft = file.with_name(f".installation-{secrets.token_hex(6)}")
        draft.write_text(secrets.token_hex(8))
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)  # the first one wins
        draft.unlink()
        return file.read_text()[:64]
    except OSError as error:
        log.warning("sessions.no_mark", error=str(error))
        return ""
