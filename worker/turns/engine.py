"""The engine of a worker process: its service, leases, reaper and the supervision of agents."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import structlog
from kombu.exceptions import OperationalError

from api_client.broker.announcer import publish_chain
from api_client.broker.celery_message import celery_settings
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.tasks import (
    ALL_QUEUES,
    CHECK_QUEUE,
    PROBE,
    RUN_QUEUE,
    ChainTask,
    UnknownTask,
    build_chain,
    find_queue,
    own_queue,
)
from api_client.contract.worker_order import WorkerOrder
from api_client.store.connection import SingleConnection
from api_client.turns.record.ledger import Ledger
from worker.agents.model_availability import ModelAvailability
from worker.agents.runner_lookup import build_runner
from worker.celery.application import TurnsApp, build_own_queue, expire_queue
from worker.celery.consumer_bridge import ConsumerBridge
from worker.celery.task_events import GATHER_SECONDS, Task, TaskEventBuffer, TaskEventReport
from worker.runners.sandbox import guard_client
from worker.turns import folders
from worker.turns.engine_parts import EngineParts
from worker.turns.flower_text import describe_loss
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.leases.machine_health import Host, find_obstacle
from worker.turns.leases.reaper import Reaper
from worker.turns.leases.worker_heartbeat import WorkerActivity, WorkerHeartbeat
from worker.turns.loops.loop import Loop
from worker.turns.loops.polling_loop import PollingLoop, Watcher
from worker.turns.loops.threads import Threads
from worker.turns.run_admissions import RunAdmissions
from worker.turns.service import TurnService
from worker.turns.session_files import SessionFiles, create_session_files
from worker.turns.slots import SlotHold, Slots
from worker.turns.validation_pool import ValidationPool
from worker.turns.warm_agents import WarmAgents

log = structlog.get_logger()

#: Seconds between checks, and in total, that an ending worker waits until Celery takes no more messages.
_LOOK_SECONDS, _CANCEL_SECONDS = 0.01, 5.0


#: The task being carried out, which becomes the parent of its announcements.
_TASK: ContextVar[TaskEventReport | None] = ContextVar("task", default=None)


class IsolatedRunner(Protocol):
    """Interface for carrying out tasks in separate processes."""

    def run_task(self, chain_task: ChainTask, turn_id: str, session_id: str) -> None:
        """Carry out one task of a turn in a separate process, and wait until the process ends."""

    def stop_all(self) -> None:
        """Stop all running processes and start no new ones."""


class Engine:
    """Receives tasks from Celery and carries out their turns in an event loop; each worker process has one engine.

    ``watchers`` and ``looking`` are further watchers for the second loop, and their connection to the store; ``alone``:
    this process carries out a single task.
    """

    def __init__(
        self,
        settings: Settings,
        celery: TurnsApp,
        isolated: IsolatedRunner,
        watchers: Sequence[Watcher] = (),
        polling_loop: SingleConnection | None = None,
        *,
        name: str = "",
        alone: bool = False,
        check_slots: int = 1,
    ) -> None:
        self.settings = settings
        self.name = name or f"alone-{os.getpid()}@{socket.gethostname()}"
        self.leases = LeaseKeeper(settings, self.name)
        self._ability = ModelAvailability(settings)
        self.bridge = ConsumerBridge(lambda: self.bridge.send_events(self._events.drain()))
        self.slots = Slots({RUN_QUEUE: settings.run_slots, CHECK_QUEUE: check_slots}, self.bridge.wake)
        self.slots.is_open = self.takes_messages
        self.loop = Loop(self._note_loop_turn)
        self._was_sick = self._quiet_ordered = self._ends = False
        self._events = TaskEventBuffer(lambda: self.loop.call_later(GATHER_SECONDS, self.bridge.wake))
        self._ledger = Ledger(settings, self.name)
        self._threads = Threads(check_slots)
        self._admissions = RunAdmissions(settings)
        files = create_session_files(settings, self._ledger, self._threads)
        self.host = Host(settings.sessions_dir, lambda folder: find_obstacle(folder) or files.find_trouble())
        self.service = TurnService(self._build_parts(files, isolated))
        self._taken, self._took_at = 0, 0.0
        self._celery = celery
        self._quiet = TurnsApp("helix-turns-probe", set_as_current=False)
        self._quiet.conf.update(celery_settings(settings) | {"task_send_sent_event": False})
        #: True if an operator ended this process, so that the supervisor does not restart it.
        self.stays_down = False
        self._polling_loop = polling_loop = polling_loop or SingleConnection(settings)
        self._reaper = Reaper(
            settings,
            self.name,
            self.announce_task,
            self.announce_released,
            lambda task_id, worker: self._events.add_failure(task_id, describe_loss(worker)),
            lambda turn: folders.forget_runs(settings, turn, range(1, turn.attempt + 1)),
            polling_loop,
        )
        self._agents = WarmAgents(settings, self.name, self.takes_messages, polling_loop)
        self._watch = PollingLoop(() if alone else (self._reaper, self._agents, *watchers))
        self._grace_seconds = 0.0 if alone else settings.shutdown_seconds
        self._asked, self._ask = os.pipe()
        self._isolated = isolated

    def _build_parts(self, files: SessionFiles, isolated: IsolatedRunner) -> EngineParts:
        return EngineParts(
            settings=self.settings,
            ledger=self._ledger,
            leases=self.leases,
            threads=self._threads,
            host=self.host,
            runners=build_runner,
            validation_pool=ValidationPool(self.settings.validation_seconds),
            announce=self.announce_task,
            announce_released=self.announce_released,
            ends=lambda: self._ends,
            ring=self.announce_task,
            isolate=isolated.run_task,
            ability=self._ability,
            files=files,
            admissions=self._admissions,
        )

    def start(self) -> None:
        """Start the engine's threads, its event loop and the process that supervises the agents."""
        threading.Thread(target=self._wait_for_shut_down, name="shutdown", daemon=True).start()
        guard_client.shared_processes().start_guard()
        self._ability.check_models()
        self.loop.start()
        self.leases.start()
        self._watch.start()

    def start_task(self, task: Task) -> bool:
        """Start a received Celery task without waiting for its end. Return False if there is nothing to do.

        Called in the Celery worker's loop. Raises ``ValueError`` for a task that is no turn's, ``KeyError`` if an
        argument is missing.
        """
        if task.name == PROBE:
            self._taken += 1
            if nonce := str(task.kwargs["nonce"]):  # a worker's own probe needs no reply
                queue = str(task.kwargs["queue"])
                self.loop.start_work(lambda: self._ledger.answer_probe(queue, nonce))
            return False
        chain_task = ChainTask.parse(f"{task.name}/{task.kwargs['attempt']}")
        turn_id, session_id = str(task.kwargs["turn_id"]), str(task.kwargs["session_id"])
        self._taken, self._took_at = self._taken + 1, time.time()
        slot_hold = self.slots.force_slot(find_queue(chain_task.task))
        self.loop.start_work(
            lambda: self._carry_out(TaskEventReport(self._events, task), slot_hold, chain_task, turn_id, session_id)
        )
        return True

    async def leave_task(self, name: str, kwargs: Mapping[str, Any]) -> None:
        """Leave a turn's task ``name`` to other workers, because no package installed here can carry it out."""
        unknown = UnknownTask(ChainTask(name, int(kwargs["attempt"])))
        await self._ledger.refuse_unknown_task(str(kwargs["turn_id"]), str(kwargs["session_id"]), unknown)

    async def cancel_turn(self, turn_id: str, stored: Callable[[], object]) -> None:
        """Cancel the turn of a revoked Celery task, then call ``stored``. Retry until the store answers."""
        from api_client.client import TurnsClient  # not in the memory of workers that never cancel

        async with TurnsClient(self.settings) as client:
            while True:
                try:
                    await client.canceller.cancel(turn_id)
                except StoreUnavailable:
                    await asyncio.sleep(1.0)
                    continue
                except TurnNotFound:
                    log.warning("turn.refused", turn_id=turn_id, why="missing")
                stored()
                return

    async def _carry_out(
        self, report: TaskEventReport, slot_hold: SlotHold, chain_task: ChainTask, turn_id: str, session_id: str
    ) -> None:
        _TASK.set(report)
        report.begin()
        structlog.contextvars.bind_contextvars(turn_id=turn_id, session_id=session_id, attempt=chain_task.attempt)
        try:
            await self.service.carry_out_task(chain_task, turn_id, session_id, slot_hold=slot_hold, report=report)
        except Exception as error:  # the turn is delivered again, and other turns are unaffected
            log.exception("turn.broke_off", chain_task=str(chain_task))
            report.fail(error)
        finally:
            slot_hold.release_all()

    def carry_out_alone(self, chain_task: ChainTask, turn_id: str, session_id: str) -> None:
        """Carry out a single task in this process, and wait until the task ends."""

        async def carry_out() -> None:
            with structlog.contextvars.bound_contextvars(
                turn_id=turn_id, session_id=session_id, attempt=chain_task.attempt
            ):
                await self.service.carry_out_task(chain_task, turn_id, session_id, alone=True)

        self.loop.run_and_wait(carry_out())

    def takes_messages(self) -> bool:
        """Return True if this worker takes messages: its machine is healthy, and nobody told it to pause or to stop."""
        return not (self.host.sick or self._quiet_ordered or self._ends)

    def _obey_order(self, order: str) -> bool:
        """Carry out an operator's order to this worker. Return True if the worker refuses new turns now."""
        was, self._quiet_ordered = self._quiet_ordered, bool(order) and order != WorkerOrder.RESUME
        if was != self._quiet_ordered:
            log.warning("worker.ordered", worker=self.name, order=order or WorkerOrder.RESUME.value)
            self.bridge.wake()
            if self._quiet_ordered:  # idle agents would receive no message
                self._agents.end_all()
        idle = order == WorkerOrder.DRAIN and was and not self.slots.busy
        if (order == WorkerOrder.STOP or idle) and not self.stays_down:
            self.stays_down = True
            os.kill(os.getpid(), signal.SIGTERM)
        return self._quiet_ordered

    def _note_loop_turn(self) -> None:
        self.leases.note_loop_turn()
        sick = bool(self.host.sick)
        if self._was_sick and not sick:
            self.bridge.wake()
        if sick and not self._was_sick:
            self._agents.end_all()
        self._was_sick = sick

    def start_heartbeat(self, consumer: Any, ready_file: Path | None) -> None:
        """Start the heartbeat, which tells the supervisor and the operators that this worker accepts messages."""
        self.bridge.consumer = consumer
        work = WorkerActivity(
            name=self.name,
            queues=lambda: tuple(filter(ALL_QUEUES.__contains__, self.bridge.queues)),
            taken=lambda: self._taken,
            slots=self.slots.count_slots,
            free=self.slots.count_free,
            lease_round=lambda: self.leases.worst_round,
            took_at=lambda: self._took_at,
            obey=self._obey_order,
            loop_blocked=lambda: self.loop.worst_block,
            kept=self._agents.seen,
        )
        log.info(
            "worker.ready",
            worker=work.name,
            slots=self.slots.count_slots(RUN_QUEUE),
            check_slots=self.slots.count_slots(CHECK_QUEUE),
        )
        heartbeat = WorkerHeartbeat(
            *(
                self.settings,
                work,
                self.host,
                self._ability,
                self._publish_probe,
                ready_file,
                self._reaper.recall_turns,
            ),
            self._polling_loop,
        )
        self._watch.add_watcher(heartbeat)

    def _publish_probe(self, queue: str) -> None:
        try:
            kwargs = {"queue": queue, "nonce": ""}
            self._quiet.send_task(PROBE, kwargs=kwargs, queue=queue, expires=60.0, retry=False, declare=[])
        except (OperationalError, OSError) as error:
            log.info("probe.not_published", queue=queue, error=type(error).__name__)

    def announce_released(self, chain_task: ChainTask, turn_id: str, session_id: str) -> bool:
        """Publish the tasks of a turn that the fair queue has released. Return False on failure."""
        return self.announce_task(chain_task, turn_id, session_id, preferred=False)

    def announce_task(
        self, chain_task: ChainTask, turn_id: str, session_id: str, worker: str = "", *, preferred: bool = True
    ) -> bool:
        """Publish the remaining tasks of a turn to Celery, starting with ``chain_task``. Return False on failure.

        Turns that ran before are ``preferred`` to new turns. With ``worker``, the tasks go to the queue of that worker
        process, where they soon expire.
        """
        report = _TASK.get()
        task = report.task if report else None
        items = build_chain(chain_task, turn_id, session_id, preferred=preferred, worker=worker)
        if worker:
            self._celery.amqp.queues.add(build_own_queue(worker))
        family: dict[str, Any] = {"root_id": task.root_id or task.task_id, "parent_id": task.task_id} if task else {}
        try:
            publish_chain(self._celery, items, **family)
            if worker:
                expire_queue(self._celery, own_queue(worker))
        except (OperationalError, OSError) as error:
            log.warning("turn.announce_failed", turn_id=turn_id, chain_task=str(chain_task), error=type(error).__name__)
            return False
        return True

    def shut_down(self) -> None:
        """Start the shutdown: hand over waiting turns at once, and give running agents some time to finish.

        Takes no lock, because a second signal may interrupt the first handler.
        """
        if not self._ends:
            self._ends = True
            os.write(self._ask, b".")

    def _wait_for_shut_down(self) -> None:
        while os.read(self._asked, 1):
            asked_at = time.monotonic()
            give_up = time.monotonic() + _CANCEL_SECONDS
            while self.bridge.listens and time.monotonic() < give_up:
                self.bridge.wake()
                threading.Event().wait(_LOOK_SECONDS)
            self._agents.end_all()
            threading.Event().wait(max(0.0, asked_at + self._grace_seconds - time.monotonic()))
            # Stop every run of this process; other workers get the turns without a strike.
            self.leases.stop_all("shutdown")
            self._isolated.stop_all()

    def close(self) -> None:
        """Wait until the turns of this process have stopped, then stop its threads and agents."""
        self.loop.wait_idle()
        self.bridge.send_events(self._events.drain(all_of_them=True))
        self._watch.close()
        self.leases.close()
        self.loop.run_and_wait(self._ledger.close())
        self.loop.run_and_wait(self._admissions.close())
        self.loop.close()
        self._threads.close()
        self._agents.close()
        guard_client.shared_processes().stop_guard()
