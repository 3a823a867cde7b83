"""A worker's heartbeat, which shows the supervisor and operators that the worker still takes messages.

After a broker outage a Celery worker can be alive, answer, and still consume nothing (celery #8030 and others).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from redis.exceptions import RedisError, ResponseError

from api_client.build_identity import build_identity
from api_client.contract.counters import clean_label
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.validator_names import offered_validators
from api_client.contract.worker_reports import WorkerReport
from api_client.store.connecting import open_store
from api_client.store.connection import SingleConnection
from api_client.workers.own_report import OwnReport
from worker.agents.model_availability import ModelAvailability
from worker.files.spreading import spread_folders
from worker.turns.leases.machine_health import Host
from worker.turns.loops.threads import ShortWorkPool

log = structlog.get_logger()


#: Longest time between two heartbeats, two reports to operators, and two checks of the queues, in seconds.
_BEAT_SECONDS, _REPORT_SECONDS, _QUEUES_SECONDS = 2.0, 5.0, 15.0


@dataclass(slots=True)
class Liveness:
    """Tells a stalled worker from an idle or fully occupied worker. Times are monotonic seconds.

    A worker is stalled if for ``limit`` seconds messages waited and a slot was free, but the worker took no message.
    """

    limit: float
    _taken: int = -1
    _since: float | None = None

    def record_look(self, now: float, *, taken: int, free: int, waiting: int | None) -> bool:
        """Record an observation of the worker. Return True if the worker is stalled.

        ``taken`` counts messages since the start; ``waiting`` is the number of waiting messages, None if the broker is
        away.
        """
        if taken != self._taken or free <= 0 or not waiting:
            self._taken, self._since = taken, None
            return False
        if self._since is None:
            self._since = now
        return bool(self.limit) and now - self._since >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """Callbacks through which the heartbeat reads the state of a worker process.

    Attributes:
        lease_round: returns the longest lease renewal of the last minute, in seconds.
        took_at: returns when a turn was last taken, in seconds since the epoch; 0 for never.
        obey: carries out an operator's order (``WorkerOrder`` or empty); returns whether new turns are refused.
        loop_blocked: returns the longest block of the event loop in the last minute, in seconds.
        kept: returns start times and sizes in bytes of idle agents, by session.
    """

    name: str
    queues: Callable[[], tuple[str, ...]]
    taken: Callable[[], int]
    slots: Callable[[str], int]
    free: Callable[[str], int]
    lease_round: Callable[[], float]
    took_at: Callable[[], float]
    obey: Callable[[str], bool]
    loop_blocked: Callable[[], float]
    kept: Callable[[], Mapping[str, tuple[float, int]]] = dict


class WorkerHeartbeat:
    """Reports regularly to the supervisor and the operators that a worker is alive."""

    def __init__(
        self,
        settings: Settings,
        work: WorkerActivity,
        host: Host,
        ability: ModelAvailability,
        probe: Callable[[str], None],
        ready_file: Path | None,
        recall: Callable[[], Awaitable[None]] | None = None,
        connection: SingleConnection | None = None,
    ) -> None:
        self._settings = settings
        self._work = work
        self._host = host
        self._ability = ability
        self._probe = probe
        self._ready_file = ready_file
        self._liveness = Liveness(settings.stalled_seconds)
        limit = settings.stalled_seconds or 60.0
        self.name, self.seconds = "heartbeat", min(_BEAT_SECONDS, limit / 8)
        self._recall = recall
        self._threads = ShortWorkPool(1, "heartbeat")  # requests to the host or the broker may hang
        self._report_seconds = min(_REPORT_SECONDS, limit / 8)
        self._queues_seconds = min(_QUEUES_SECONDS, limit / 4)
        redis = (connection or SingleConnection(settings)).redis
        self._own = OwnReport(settings, work.name, redis)
        self._broker = redis
        if settings.broker_url != settings.store_url:
            self._broker = open_store(replace(settings, store_url=settings.broker_url), single=True)
        self._prefix = f"{settings.namespace}:celery:"
        self._report = WorkerReport(host=socket.gethostname(), queues=work.queues())
        self._ordered = ""
        self._started, self._ahead = time.time(), 0.0  # the store's clock minus ours, as of the last report
        self._sessions_dir = settings.sessions_dir
        self._sessions = hashlib.sha256(settings.files.encode()).hexdigest()[:16] if settings.files else ""
        self._queues_seen_at = self._reported_at = float("-inf")
        self._stalled = False
        self._reported: tuple[object, ...] = ()

    async def leave(self) -> None:
        """Move this worker from the store's list of running workers to the list of recently ended workers."""
        await self._own.sign_off(replace(self._report, at=self._to_store_time(time.time())))

    async def poll(self) -> None:
        """Touch the file that the supervisor watches, obey an operator's order, and report to the store if due."""
        sick, models = await self._threads.run_work(lambda: (self._host.probe_if_due(), self._ability.check_if_due()))
        try:
            self._ordered = await self._own.read_order()
        except RedisError as error:
            log.info("heartbeat.store_away", error=type(error).__name__)
        now, quiet = time.monotonic(), self._work.obey(self._ordered)
        queues = () if sick or quiet else self._work.queues()
        free = {queue: self._work.free(queue) if queue in queues else 0 for queue in (RUN_QUEUE, CHECK_QUEUE)}
        if now - self._queues_seen_at >= self._queues_seconds:
            self._queues_seen_at = now
            await self._check_queues(free)
        self._update_ready_file(stalled=self._stalled)
        said = (self._stalled, sick, quiet, models)
        if now - self._reported_at >= self._report_seconds or self._reported != said:
            if self._reported[3:] != (models,):
                await self._compare_workers()
            self._reported_at, self._reported = now, said
            await self._send_report(free, sick, quiet)

    async def _check_queues(self, free: Mapping[str, int]) -> None:
        """Check whether this worker ignores waiting messages. Publish a probe message if none is waiting."""
        work, waiting = self._work, await self._count_waiting()
        slots = sum(free.values())
        self._stalled = self._liveness.record_look(time.monotonic(), taken=work.taken(), free=slots, waiting=waiting)
        if self._stalled:
            log.error("worker.stalled", worker=work.name, waiting=waiting, free=slots)
        if waiting == 0:
            for queue in [queue for queue, number in free.items() if number][:1]:  # one poll covers all queues
                await self._threads.run_work(functools.partial(self._probe, queue))

    def _update_ready_file(self, *, stalled: bool) -> None:
        if self._ready_file:
            try:
                self._ready_file.unlink(missing_ok=True) if stalled else self._ready_file.touch()
            except OSError as error:
                log.warning("heartbeat.not_marked", error=str(error))

    async def _count_waiting(self) -> int | None:
        try:
            lengths: list[Any] = [
                await self._broker.llen(self._prefix + name) for name in self._work.queues() if self._work.free(name)
            ]
        except RedisError as error:
            log.info("heartbeat.broker_away", error=type(error).__name__)
            return None
        return int(sum(lengths))

    async def _send_report(self, free: Mapping[str, int], sick: str, quiet: bool) -> None:
        self._sessions = self._sessions or identify_folder(self._sessions_dir)
        try:
            clock = await self._own.read_clock()
        except RedisError as error:
            log.info("heartbeat.store_away", error=type(error).__name__)
            return
        self._ahead = clock - time.time()
        self._report = WorkerReport(
            at=self._to_store_time(time.time()),
            started_at=self._to_store_time(self._started),
            host=socket.gethostname(),
            pid=os.getpid(),
            version=build_identity(),
            queues=self._work.queues(),
            slots=self._work.slots(RUN_QUEUE),
            free=free[RUN_QUEUE],
            check_slots=self._work.slots(CHECK_QUEUE),
            check_free=free[CHECK_QUEUE],
            stalled=self._stalled,
            sick=sick,
            quiet=quiet,
            lease_round=round(self._work.lease_round(), 3),
            took_at=self._to_store_time(self._work.took_at()),
            loop_blocked=round(self._work.loop_blocked(), 3),
            sessions=self._sessions,
            validators=offered_validators(),
            models=self._ability.models,
            cannot=dict(self._ability.unavailable),
            kept={name: [self._to_store_time(since), size] for name, (since, size) in self._work.kept().items()},
        )
        try:
            await self._own.write_report(self._report)
        except ResponseError as error:  # for example a full disk
            log.info("heartbeat.store_refuses", error=str(error)[:80])
            self._reported_at = float("-inf")  # send a report as soon as the store accepts it
            with contextlib.suppress(RedisError):
                await self._own.signal_alive(self._report.at)
        except RedisError as error:
            log.info("heartbeat.store_away", error=type(error).__name__)

    async def _compare_workers(self) -> None:
        """Warn if other workers use a different HELIX_ROOT. Mark the turns that only this worker can run as due."""
        self._sessions = self._sessions or await self._threads.run_work(lambda: identify_folder(self._sessions_dir))
        try:
            others = await self._own.read_others()
            if apart := sorted({each.host for each in others if each.sessions not in {"", self._sessions}}):
                log.error("sessions.not_shared", hosts=apart, hint="all workers need one HELIX_ROOT")
            mine = self._ability.models
            alone = [name for name in mine if all(each.explain_cannot_run(clean_label(name)) for each in others)]
            if others and alone and self._recall:
                await self._recall()
        except (RedisError, ValueError) as error:
            log.info("heartbeat.not_compared", error=type(error).__name__)

    def _to_store_time(self, at: float) -> float:
        return round(at + self._ahead, 3) if at else 0.0


def identify_folder(sessions_dir: Path) -> str:
    """Return an id that all workers sharing this sessions folder have in common, or "" if it is unusable."""
    file = sessions_dir / ".installation"
    try:
        sessions_dir.mkdir(parents=True, exist_ok=True)
        spread_folders(sessions_dir)
        draft = file.with_name(f".installation-{secrets.token_hex(6)}")
        draft.write_text(secrets.token_hex(8))
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)  # the first worker wins
        draft.unlink()
        return file.read_text()[:64]
    except OSError as error:
        log.warning("sessions.no_mark", error=str(error))
        return ""
