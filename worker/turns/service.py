"""Carries out the tasks of turns' chains: claim the turn, work on the task, commit the transition."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Protocol

import structlog
from redis.exceptions import RedisError, ResponseError

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.counters import clean_label
from api_client.contract.errors import HelixError, SettingsError
from api_client.contract.failpoints import pass_failpoint_async
from api_client.contract.session_files import SessionFilesAway, SessionFilesError
from api_client.contract.tasks import FAIL, RUN_QUEUE, TASKS, VALIDATE, ChainTask, all_tasks, find_queue
from api_client.contract.turn import Outcome, PendingFailure, Turn
from api_client.contract.validator_names import offered_validators
from api_client.contract.worker_reports import WorkerReport, worker_name
from api_client.store.commands import BEGUN
from api_client.turns.record.claim import ClaimRefusal, CommitResult, LeaseClaim, LeaseLost, ValidationHeldBack
from api_client.turns.record.ledger import SOON_SECONDS
from api_client.turns.record.transition import Transition
from worker.files.recent_entries import RecentEntries
from worker.turns import folders, publisher, task_work
from worker.turns.engine_parts import EngineParts
from worker.turns.flower_text import describe_end, describe_start
from worker.turns.leases.lease import Lease
from worker.turns.slots import SlotHold, Slots
from worker.turns.transitions.after_run import avoid_workers, give_back_task, retry_without_files
from worker.turns.transitions.after_validation import fail_unvalidated
from worker.turns.transitions.validated_run import ValidatedRun
from worker.turns.validation import validate_at_once
from worker.turns.work import is_work_installed

log = structlog.get_logger()

_RECORD_LOST = "the store no longer has this turn: it was emptied, or restarted without its append-only file"

#: First wait before asking again for a turn left to another worker, in seconds; each further wait grows by this.
_FIRST_WAIT = 0.02
#: Error code for a wrong configuration of this worker.
_SET_UP = "config"
_SUCCESSES = frozenset(outcome.value for outcome in Outcome if outcome.success)


class TaskReport(Protocol):
    """Interface for showing a task's progress to operators. The base class shows nothing."""

    @property
    def task_id(self) -> str:
        """Return the id of the Celery task, or an empty string if its progress is not shown to operators."""
        return ""

    def start_task(self, words: str) -> None:
        """Report that the task starts; ``words`` describes the task."""
        return

    def end_task(self, words: str, *, failed: bool = False) -> None:
        return

    def next_task_id(self, _link: ChainTask | None) -> str:
        """Return the Celery id of the turn's next task if this process continues with it, or an empty string."""
        return ""

    def start_next(self, chain_task: ChainTask) -> None:
        """Report that this process continues with the turn's next task."""
        return


class NoTaskReport(TaskReport):
    """A task report that shows nothing, for tasks whose progress no operator can see."""


@dataclass(frozen=True, slots=True)
class _TurnContext:
    """The state of this process while it works on a turn. ``alone`` means that the process has no other task."""

    slot_hold: SlotHold
    report: TaskReport
    alone: bool


class TurnService:
    """Carries out the Celery tasks of turns in an event loop: claims a turn, does the task, stores the result."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        #: Why this process cannot validate recent turns, by turn id.
        self._unknown = RecentEntries[str, str](most=256)

    async def carry_out_task(
        self,
        chain_task: ChainTask,
        turn_id: str,
        session_id: str,
        *,
        alone: bool = False,
        slot_hold: SlotHold | None = None,
        report: TaskReport | None = None,
    ) -> None:
        """Carry out a task of a turn, and continue with the turn's next tasks while slots are free.

        ``slot_hold`` holds the turn's slots; without it only the first task is carried out. ``alone``: this process
        does nothing else. Raises ``RedisError`` if the store stayed away; the turn will be delivered again.
        """
        context = _TurnContext(slot_hold or SlotHold(Slots({})), report or NoTaskReport(), alone)
        await pass_failpoint_async("task.received")
        # The message arrived before the process knew.
        if why := self.parts.host.sick or ("it ends" if self.parts.ends() else ""):
            context.report.end_task(f"not here: {why}")
            await self.parts.threads.do_file_work(self.parts.announce, chain_task, turn_id, session_id)
            return
        claim = await self._claim_turn(chain_task, turn_id, session_id, context)
        if not self.parts.settings.has_queues:  # otherwise the claim released turns itself
            await self._release_turns()
        if claim is None:
            return
        with self.parts.leases.hold_lease(claim) as lease:
            while following := await self._carry_out_claimed(lease, context):
                lease.continue_with(following)
                context.slot_hold.keep_needed(find_queue(following.chain_task.task))
                structlog.contextvars.bind_contextvars(attempt=following.chain_task.attempt)
                context.report.start_next(following.chain_task)

    async def _carry_out_claimed(self, lease: Lease, context: _TurnContext) -> LeaseClaim | None:
        """Carry out the claimed task. Return the claim of the next task, or None if this process must not continue."""
        claim, report = lease.claim, context.report
        chain_task, turn = claim.chain_task, claim.turn
        try:
            attempts = await self.parts.ledger.read_attempts(claim)
            report.start_task(describe_start(turn, chain_task, attempts))
            if self.parts.ends() and find_queue(chain_task.task) == RUN_QUEUE:
                transition = give_back_task(turn, chain_task, "shutdown")
            else:
                transition = await self._do_task(lease, attempts)
            if (failing := transition.fields.values.get("failing")) and failing.code == _SET_UP:
                transition = await self._handle_wrong_setup(lease, transition, failing)
            await pass_failpoint_async("link.decided")
            chain_task, transition, done = await self._store_result(lease, attempts, transition, context)
        except LeaseLost:
            if await self.parts.ledger.has_turn(claim.turn.turn_id):
                log.warning("turn.fenced", chain_task=str(claim.chain_task))
            else:
                log.error("turn.record_lost", chain_task=str(claim.chain_task), hint=_RECORD_LOST)
            report.end_task("WorkerLost: another worker has the turn", failed=True)
            return None
        outcome = done.outcome if isinstance(done, CommitResult) else ""
        # The task failed if it gave the turn up or ended the turn without an answer.
        failed = bool(outcome) and (chain_task.task == FAIL or outcome not in {*_SUCCESSES, Outcome.CANCELLED})
        report.end_task(describe_end(turn, chain_task, transition, outcome), failed=failed)
        if not outcome and transition.next and transition.next.task == all_tasks()[chain_task.task].checked_by:
            await pass_failpoint_async("run.committed")
        following = done if isinstance(done, LeaseClaim) else None
        validated = chain_task != claim.chain_task
        await task_work.forget_recordings(self.parts, lease, following, published=validated and outcome in _SUCCESSES)
        if isinstance(done, CommitResult):
            await self._announce_next(claim, transition, done)
        return following

    async def _store_result(
        self, lease: Lease, attempts: list[AttemptRecord], transition: Transition, context: _TurnContext
    ) -> tuple[ChainTask, Transition, LeaseClaim | CommitResult]:
        """Store a task's transition, together with the verdict if the answer can be validated immediately."""
        chain_task, turn, report = lease.claim.chain_task, lease.claim.turn, context.report
        validated: ValidatedRun | None = None
        if transition.next and transition.next.task == VALIDATE and self._runs_in_place(lease, transition, context):
            validated = await validate_at_once(self.parts, lease, transition, attempts)
        if validated is None:
            return chain_task, transition, await self._store_transition(lease, transition, context)
        report.end_task(describe_end(turn, chain_task, transition, ""))
        chain_task = ChainTask(VALIDATE, chain_task.attempt)
        report.start_next(chain_task)
        report.start_task(describe_start(turn, chain_task, attempts))
        await pass_failpoint_async("link.decided")
        try:
            return chain_task, validated.verdict, await self._store_transition(lease, validated.transition, context)
        except ValidationHeldBack:
            return chain_task, replace(transition, events=[]), await self._store_transition(lease, transition, context)

    async def _store_transition(
        self, lease: Lease, transition: Transition, context: _TurnContext
    ) -> LeaseClaim | CommitResult:
        """Save the session's files, then store the transition with a reference to these files."""
        files, chain_task = "", lease.claim.chain_task
        try:
            files = (
                ""
                if chain_task.task == FAIL
                else await self.parts.files.save_files(lease, bounded=not transition.outcome)
            )
        except SessionFilesError as error:
            log.error("session.not_kept", chain_task=str(chain_task), error=str(error)[:200])
            transition = transition if transition.outcome else await self._handle_missing_files(lease, error)
        stays, lease.giving_back = self._runs_in_place(lease, transition, context), True
        task = context.report.next_task_id(transition.next) if stays else ""
        return await self.parts.ledger.commit_transition(lease.claim, transition, keep=stays, task=task, files=files)

    async def _handle_missing_files(self, lease: Lease, error: HelixError) -> Transition:
        turn, chain_task = lease.claim.turn, lease.claim.chain_task
        if not isinstance(error, SessionFilesAway):
            return fail_unvalidated(chain_task, str(error), error.code)
        await self.parts.threads.do_file_work(self.parts.host.probe_now)
        return retry_without_files(turn, chain_task, str(error))

    def _runs_in_place(self, lease: Lease, transition: Transition, context: _TurnContext) -> bool:
        """Take a free slot for the next task. Return True if this process continues with that task.

        The delivery before the last strike needs a process of its own.
        """
        if (
            transition.next is None
            or transition.outcome
            or transition.delay_ms
            or transition.suspend_seconds
            or transition.next == lease.claim.chain_task
        ):
            return False
        parts, turn = self.parts, lease.claim.turn
        if context.alone or lease.reason or parts.host.sick or turn.strikes >= parts.settings.strikes - 1:
            return False
        queue = find_queue(transition.next.task)
        return not (parts.ends() and queue == RUN_QUEUE) and context.slot_hold.acquire_slot(queue)

    async def _claim_turn(
        self, chain_task: ChainTask, turn_id: str, session_id: str, context: _TurnContext
    ) -> LeaseClaim | None:
        report = context.report
        try:
            claim = await self._request_claim(chain_task, turn_id, session_id, context)
        except (ResponseError, ValueError) as error:
            await self.parts.ledger.postpone_damaged_turn(turn_id, error)
            report.end_task("its record is damaged")
            return None
        if isinstance(claim, LeaseClaim):
            return claim
        if claim.why == "missing":
            log.error("turn.record_lost", chain_task=str(chain_task), hint=_RECORD_LOST)
        log.info("turn.refused", chain_task=str(chain_task), why=claim.why)
        report.end_task(f"left to {claim.worker}" if claim.worker else f"nothing to do: {claim.why.replace('_', ' ')}")
        if claim.why == "elsewhere" and await self._find_capable(chain_task, turn_id):
            # Announce again soon until a capable worker takes the turn; without a capable worker the delay doubles.
            await self.parts.ledger.postpone_turn(turn_id, SOON_SECONDS)
        if claim.why == "alone":
            await self.parts.threads.do_run(self.parts.isolate, chain_task, turn_id, session_id)
        return None

    async def _request_claim(
        self, chain_task: ChainTask, turn_id: str, session_id: str, context: _TurnContext
    ) -> LeaseClaim | ClaimRefusal:
        """Ask the store for a claim on the turn. A worker with an idle agent of the session gets precedence."""
        lack = (
            (chain_task.task not in TASKS and await self._find_lack(turn_id, chain_task))
            or self._unknown.get(turn_id)
            or ""
        )
        models, rung, wait = self.parts.ability.labels, "", _FIRST_WAIT
        while True:
            task = context.report.task_id
            claim = await self.parts.ledger.claim_turn(
                turn_id, session_id, chain_task, alone=context.alone, task=task, models=models, lack=lack
            )
            if isinstance(claim, LeaseClaim):
                return claim
            if not claim.worker:
                return replace(claim, worker=rung)
            if not rung:
                rung = claim.worker
                await self.parts.threads.do_file_work(self.parts.ring, chain_task, turn_id, session_id, rung)
            await asyncio.sleep(wait)
            wait += _FIRST_WAIT

    async def _find_lack(self, turn_id: str, chain_task: ChainTask) -> str:
        turn = await self.parts.ledger.read_turn(turn_id)
        try:
            if turn:
                await self.parts.threads.do_file_work(folders.locate_turn_folder, self.parts.settings, turn)
        except SettingsError as error:
            log.warning("turn.not_here", turn_id=turn_id, chain_task=str(chain_task), error=str(error)[:200])
            return str(error)
        return ""

    async def _find_capable(self, chain_task: ChainTask, turn_id: str) -> list[WorkerReport]:
        turn = await self.parts.ledger.read_turn(turn_id)
        if turn is None:
            return []
        model, queue = clean_label(turn.stage_model or turn.request.model), find_queue(chain_task.task)
        return [
            each
            for each in await self.parts.ledger.list_other_workers()
            if queue in each.queues
            and not (each.sick or each.quiet or each.stalled or each.worker in turn.lacks)
            and not (queue == RUN_QUEUE and each.explain_cannot_run(model))
            and not any(word in f"{each.name}$" for word in turn.avoid.split())
        ]

    async def _handle_wrong_setup(self, lease: Lease, transition: Transition, failing: PendingFailure) -> Transition:
        """Hand a task over to other workers if the task fails only because of this worker's configuration.

        Each capable worker tries once; after that the turn itself or the whole installation is to blame.
        """
        turn, chain_task = lease.claim.turn, lease.claim.chain_task
        cannot = await self.parts.threads.do_file_work(self.parts.ability.check_models)
        model = turn.stage_model or turn.request.model
        lack = await self._find_lack(turn.turn_id, chain_task) if turn.request.work else ""
        here = (lack and chain_task.task not in TASKS) or (model in cannot and find_queue(chain_task.task) == RUN_QUEUE)
        if unknown := self._find_unknown_rule(turn) or ("" if is_work_installed(turn) else lack):
            self._unknown.put(turn.turn_id, unknown)
        elif not here and not await self._find_capable(chain_task, turn.turn_id):
            return transition
        log.error("turn.not_here", chain_task=str(chain_task), error=failing.reason[:200])
        name = self.parts.ledger.worker
        return avoid_workers(
            turn, give_back_task(turn, chain_task, "set_up"), f"{worker_name(name).partition('@')[0]}-"
        )

    def _find_unknown_rule(self, turn: Turn) -> str:
        strange = [name for name in self.parts.policies.find_plain_rules(turn) if name not in offered_validators()]
        return self.parts.policies.find_problem(turn) or (f"it has no validator {strange[0]!r}" if strange else "")

    async def _announce_next(self, claim: LeaseClaim, transition: Transition, done: CommitResult) -> None:
        turn_id, session_id = claim.turn.turn_id, claim.turn.request.session_id
        if done.outcome:
            log.info("turn.finished", outcome=done.outcome, attempt=claim.chain_task.attempt)
            await pass_failpoint_async("turn.finished")
            if done.head and (head_link := await self.parts.ledger.next_task(done.head)):
                with contextlib.suppress(RedisError):
                    came = claim.turn.created_at
                    if await self.parts.ledger.queue_turn(done.head, session_id, head_link, came) == BEGUN:
                        await self.parts.threads.do_file_work(self.parts.announce, head_link, done.head, session_id)
                if not self.parts.settings.has_queues:
                    await self._release_turns()
            return
        if transition.next is not None and not transition.delay_ms:
            await self.parts.threads.do_file_work(self.parts.announce, transition.next, turn_id, session_id)

    async def _release_turns(self) -> None:
        with contextlib.suppress(RedisError):
            for chain_task, each, session_id in (await self.parts.ledger.release_turns()).left:
                await self.parts.threads.do_file_work(self.parts.announce_released, chain_task, each, session_id)

    async def _do_task(self, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
        chain_task = lease.claim.chain_task
        try:
            if lease.claim.accepted:
                return await publisher.publish_sealed(self.parts, lease)
            await self.parts.files.restore_files(lease)
            return await task_work.carry_out_task(self.parts, lease, attempts)
        except SettingsError as error:
            log.error("turn.set_up_wrong", chain_task=str(chain_task), error=str(error)[:200])
            return fail_unvalidated(chain_task, str(error))
        except SessionFilesError as error:
            log.error("session.not_here", chain_task=str(chain_task), error=str(error)[:200])
            return await self._handle_missing_files(lease, error)
        except OSError as error:
            if not await self.parts.threads.do_file_work(self.parts.host.probe_now):
                raise
            log.warning("turn.given_back", chain_task=str(chain_task), error=str(error)[:200])
            return give_back_task(lease.claim.turn, chain_task, "host")
