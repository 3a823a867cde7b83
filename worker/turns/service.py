"""Carries out the tasks of turns' chains: claim the turn, work on the task, commit the transition."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Protocol

import structlog
from redis.exceptions import RedisError, ResponseError

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.counters import label
from api_client.contract.errors import HelixError, SettingsError
from api_client.contract.failpoints import arrive
from api_client.contract.offered import offered_validators
from api_client.contract.session_files import SessionFilesAway, SessionFilesError
from api_client.contract.tasks import FAIL, RUN_QUEUE, TASKS, VALIDATE, Link, all_tasks, find_queue
from api_client.contract.turn import Outcome, PendingFailure, Turn
from api_client.contract.worker_reports import WorkerReport, worker_of
from api_client.store.commands import BEGUN
from api_client.turns.record.claim import Claim, CommitResult, JudgingHeldBack, LeaseLost, Refusal
from api_client.turns.record.moves import Move
from worker.files.recent import RecentEntries
from worker.turns import folders, links, publisher
from worker.turns.flower_text import beginning, ending
from worker.turns.leases.lease import Lease
from worker.turns.parts import EngineParts
from worker.turns.slots import Seat, Slots
from worker.turns.transitions.after_judging import cannot_judge
from worker.turns.transitions.after_run import elsewhere, given_back, without_files
from worker.turns.transitions.judged_run import JudgedRun
from worker.turns.validation import at_once

log = structlog.get_logger()

_RECORD_LOST = "the store no longer has this turn: it was emptied, or restarted without its append-only file"

#: Seconds before a turn left to other workers is announced again.
_SOON_SECONDS = 0.5

#: First wait before asking again for a turn left to another worker, in seconds; each further wait grows by this much.
_FIRST_WAIT = 0.02
#: Error code for a wrong configuration of this worker.
_SET_UP = "config"
_SUCCESSES = frozenset(outcome.value for outcome in Outcome if outcome.success)


class TaskReport(Protocol):
    """Interface for showing a task's progress to operators. The methods of this base class show nothing."""

    @property
    def task_id(self) -> str:
        """Return the id of the Celery task, or an empty string if nobody watches."""
        return ""

    def start(self, words: str) -> None:
        """Report the start of the task, described by the text ``words``."""
        return

    def end(self, words: str, *, failed: bool = False) -> None:
        """Report the end of the task, described by the text ``words``."""
        return

    def following(self, _link: Link | None) -> str:
        """Return the Celery id that the next task gets if this process continues with it; empty if nobody watches."""
        return ""

    def follow(self, link: Link) -> None:
        """Report that this process continues with the turn's next task."""
        return


class NoTaskReport(TaskReport):
    """A task report that shows nothing, for tasks that no operator watches."""


@dataclass(frozen=True, slots=True)
class _Visit:
    """The resources of a turn while this process works on the turn.

    ``alone`` means that the process does nothing else.
    """

    seat: Seat
    report: TaskReport
    alone: bool


class TurnService:
    """Carries out the tasks of turns in a worker's event loop: claims turns, works, and stores the results."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        #: What this process does not know about recent turns, by turn id; a later version may know more.
        self._unknown = RecentEntries[str, str](most=256)

    async def carry_out(
        self,
        link: Link,
        turn_id: str,
        session_id: str,
        *,
        alone: bool = False,
        seat: Seat | None = None,
        report: TaskReport | None = None,
    ) -> None:
        """Carry out a task of a turn, and continue with the turn's next tasks while this process has free slots.

        A task that is not carried out in place is announced. ``seat`` holds the turn's slots; without slots only the
        first task is carried out. ``alone`` means that this process does nothing else.

        Raises:
            RedisError: the store stayed away; the turn will be delivered again.
        """
        # Without slots no further task runs in place.
        visit = _Visit(seat or Seat(Slots({})), report or NoTaskReport(), alone)
        await arrive("task.received")
        if why := self.parts.host.sick or (
            "it ends" if self.parts.ends() else ""
        ):  # the message arrived before the process knew
            visit.report.end(f"not here: {why}")
            await self.parts.threads.files(self.parts.announce, link, turn_id, session_id)
            return
        claim = await self._claimed(link, turn_id, session_id, visit)
        if not self.parts.settings.has_queues:  # otherwise the claim released turns itself
            await self._release()
        if claim is None:
            return
        with self.parts.leases.hold(claim) as lease:
            while following := await self._carried_out(lease, visit):
                lease.go_on(following)
                visit.seat.settle(find_queue(following.link.task))
                structlog.contextvars.bind_contextvars(attempt=following.link.attempt)
                visit.report.follow(following.link)

    async def _carried_out(self, lease: Lease, visit: _Visit) -> Claim | None:
        """Carry out the claimed task. Return the claim of the next task if this process continues, otherwise None."""
        claim, report = lease.claim, visit.report
        link, turn = claim.link, claim.turn
        try:
            attempts = await self.parts.ledger.attempts(claim)
            report.start(beginning(turn, link, attempts))
            if self.parts.ends() and find_queue(link.task) == RUN_QUEUE:  # another worker starts the agent at once
                move = given_back(turn, link, "shutdown")
            else:
                move = await self._work(lease, attempts)
            if (failing := move.fields.values.get("failing")) and failing.code == _SET_UP:
                move = await self._set_up(lease, move, failing)
            await arrive("link.decided")
            link, move, done = await self._stored(lease, attempts, move, visit)
        except LeaseLost:
            if await self.parts.ledger.knows(claim.turn.turn_id):
                log.warning("turn.fenced", link=str(claim.link))
            else:
                log.error("turn.record_lost", link=str(claim.link), hint=_RECORD_LOST)
            report.end("WorkerLost: another worker has the turn", failed=True)
            return None
        outcome = done.outcome if isinstance(done, CommitResult) else ""
        # The task failed if it gave the turn up or ended the turn without an answer. A cancellation is no failure.
        failed = bool(outcome) and (link.task == FAIL or outcome not in {*_SUCCESSES, Outcome.CANCELLED})
        report.end(ending(turn, link, move, outcome), failed=failed)
        if not outcome and move.next and move.next.task == all_tasks()[link.task].judged_by:
            await arrive("run.committed")
        following = done if isinstance(done, Claim) else None
        judged = link != claim.link
        await links.settle(self.parts, lease, following, published=judged and outcome in _SUCCESSES)
        if isinstance(done, CommitResult):
            await self._go_on(claim, move, done)
        return following

    async def _stored(
        self, lease: Lease, attempts: list[AttemptRecord], move: Move, visit: _Visit
    ) -> tuple[Link, Move, Claim | CommitResult]:
        """Store the transition of a task. If the answer of a run can be validated at once, store the verdict with it.

        Returns the last task carried out, its transition, and the store's reply.

        Raises:
            Fenced: another worker has the turn.
        """
        link, turn, report = lease.claim.link, lease.claim.turn, visit.report
        judged: JudgedRun | None = None
        if move.next and move.next.task == VALIDATE and self._stays(lease, move, visit):
            judged = await at_once(self.parts, lease, move, attempts)
        if judged is None:
            return link, move, await self._store(lease, move, visit)
        report.end(ending(turn, link, move, ""))
        link = Link(VALIDATE, link.attempt)
        report.follow(link)
        report.start(beginning(turn, link, attempts))
        await arrive("link.decided")
        try:
            return link, judged.verdict, await self._store(lease, judged.move, visit)
        except JudgingHeldBack:
            return link, replace(move, events=[]), await self._store(lease, move, visit)

    async def _store(self, lease: Lease, move: Move, visit: _Visit) -> Claim | CommitResult:
        """Save the session's files, then store the transition with a reference to these files.

        A turn also ends if its files cannot be saved; the session then keeps its earlier files, for a sealed answer the
        files of the seal.
        """
        files, link = "", lease.claim.link
        try:
            files = "" if link.task == FAIL else await self.parts.files.save(lease, bounded=not move.outcome)
        except SessionFilesError as error:
            log.error("session.not_kept", link=str(link), error=str(error)[:200])
            move = move if move.outcome else await self._without_files(lease, error)
        stays, lease.giving_back = self._stays(lease, move, visit), True
        if stays:
            return await self.parts.ledger.advance(lease.claim, move, visit.report.following(move.next), files)
        return await self.parts.ledger.commit(lease.claim, move, files)

    async def _without_files(self, lease: Lease, error: HelixError) -> Move:
        turn, link = lease.claim.turn, lease.claim.link
        if not isinstance(error, SessionFilesAway):
            return cannot_judge(link, str(error), error.code)
        await self.parts.threads.files(self.parts.host.look)
        return without_files(turn, link, str(error))

    def _stays(self, lease: Lease, move: Move, visit: _Visit) -> bool:
        """Return whether this process continues with the next task at once, which takes a free slot.

        A repeated task may go to another process, and the delivery before the last strike needs a process of its own.
        """
        if move.next is None or move.outcome or move.delay_ms or move.suspend_seconds or move.next == lease.claim.link:
            return False
        parts, turn = self.parts, lease.claim.turn
        if visit.alone or lease.reason or parts.host.sick or turn.strikes >= parts.settings.strikes - 1:
            return False
        queue = find_queue(move.next.task)
        return not (parts.ends() and queue == RUN_QUEUE) and visit.seat.may_go_on(queue)

    async def _claimed(self, link: Link, turn_id: str, session_id: str, visit: _Visit) -> Claim | None:
        """Claim the turn for this worker. Return None and report the reason if the turn cannot be claimed."""
        report = visit.report
        try:
            claim = await self._asked(link, turn_id, session_id, visit)
        except (ResponseError, ValueError) as error:
            await self.parts.ledger.put_aside(turn_id, error)
            report.end("its record is damaged")
            return None
        if isinstance(claim, Claim):
            return claim
        if claim.why == "missing":
            log.error("turn.record_lost", link=str(link), hint=_RECORD_LOST)
        log.info("turn.refused", link=str(link), why=claim.why)
        report.end(f"left to {claim.worker}" if claim.worker else f"nothing to do: {claim.why.replace('_', ' ')}")
        if claim.why == "elsewhere" and await self._who_can(link, turn_id):
            # Announce again soon until a capable worker takes the turn; without a capable worker the delay doubles.
            await self.parts.ledger.put_off(turn_id, _SOON_SECONDS)
        if claim.why == "alone":
            await self.parts.threads.runs(self.parts.isolate, link, turn_id, session_id)
        return None

    async def _asked(self, link: Link, turn_id: str, session_id: str, visit: _Visit) -> Claim | Refusal:
        """Ask the store for the turn, after any other worker that still keeps an agent of the session.

        That worker is notified and has ``affinity_patience`` seconds to claim the turn.
        """
        lack = (link.task not in TASKS and await self._lack(turn_id, link)) or self._unknown.get(turn_id) or ""
        models, rung, wait = self.parts.ability.labels, "", _FIRST_WAIT
        while True:
            task = visit.report.task_id
            claim = await self.parts.ledger.claim(
                turn_id, session_id, link, alone=visit.alone, task=task, models=models, lack=lack
            )
            if isinstance(claim, Claim):
                return claim
            if not claim.worker:
                return replace(claim, worker=rung)
            if not rung:
                rung = claim.worker
                await self.parts.threads.files(self.parts.ring, link, turn_id, session_id, rung)
            await asyncio.sleep(wait)
            wait += _FIRST_WAIT

    async def _lack(self, turn_id: str, link: Link) -> str:
        """Return why this worker cannot carry out the task of an installed kind of work; empty if it can."""
        turn = await self.parts.ledger.turn(turn_id)
        try:
            if turn:
                await self.parts.threads.files(folders.folder_of, self.parts.settings, turn)
        except SettingsError as error:
            log.warning("turn.not_here", turn_id=turn_id, link=str(link), error=str(error)[:200])
            return str(error)
        return ""

    async def _who_can(self, link: Link, turn_id: str) -> list[WorkerReport]:
        turn = await self.parts.ledger.turn(turn_id)
        if turn is None:
            return []
        model, queue = label(turn.stage_model or turn.request.model), find_queue(link.task)
        return [
            each
            for each in await self.parts.ledger.others()
            if queue in each.queues
            and not (each.sick or each.quiet or each.stalled or each.worker in turn.lacks)
            and not (queue == RUN_QUEUE and each.cannot_run(model))
            and not any(word in f"{each.name}$" for word in turn.avoid.split())
        ]

    async def _set_up(self, lease: Lease, move: Move, failing: PendingFailure) -> Move:
        """Hand a task over to other workers if the task would fail only because of this worker's configuration.

        Each capable worker tries once; after that the turn itself or the whole installation is to blame. Turns wait for
        a worker if none offers the model, has the folder, or knows a rule.
        """
        turn, link = lease.claim.turn, lease.claim.link
        cannot = await self.parts.threads.files(self.parts.ability.check_models)
        model = turn.stage_model or turn.request.model
        here = (model in cannot and find_queue(link.task) == RUN_QUEUE) or (
            link.task not in TASKS and bool(await self._lack(turn.turn_id, link))
        )
        if unknown := self._unknown_of(turn):
            self._unknown.put(turn.turn_id, unknown)
        elif not here and not await self._who_can(link, turn.turn_id):
            return move
        log.error("turn.not_here", link=str(link), error=failing.reason[:200])
        name = self.parts.ledger.worker
        return elsewhere(turn, given_back(turn, link, "set_up"), f"{worker_of(name).partition('@')[0]}-")

    def _unknown_of(self, turn: Turn) -> str:
        """Describe the validation rule of a turn that this worker does not know; empty if all rules are known."""
        strange = [name for name in self.parts.policies.plain_rules(turn) if name not in offered_validators()]
        return self.parts.policies.problem(turn) or (f"it has no validator {strange[0]!r}" if strange else "")

    async def _go_on(self, claim: Claim, move: Move, done: CommitResult) -> None:
        """Announce the next task to Celery, or the next turn of the session if this turn ended.

        A failure is harmless, because a reaper announces missed tasks.
        """
        turn_id, session_id = claim.turn.turn_id, claim.turn.request.session_id
        if done.outcome:
            log.info("turn.finished", outcome=done.outcome, attempt=claim.link.attempt)
            await arrive("turn.finished")
            if done.head and (head_link := await self.parts.ledger.next_link(done.head)):
                with contextlib.suppress(RedisError):
                    came = claim.turn.created_at
                    if await self.parts.ledger.line_up(done.head, session_id, head_link, came) == BEGUN:
                        await self.parts.threads.files(self.parts.announce, head_link, done.head, session_id)
                if not self.parts.settings.has_queues:
                    await self._release()
            return
        if move.next is not None and not move.delay_ms:
            await self.parts.threads.files(self.parts.announce, move.next, turn_id, session_id)

    async def _release(self) -> None:
        with contextlib.suppress(RedisError):
            for link, each, session_id in (await self.parts.ledger.release()).left:
                await self.parts.threads.files(self.parts.let_go, link, each, session_id)

    async def _work(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Carry out the claimed task and return its transition. Invalid settings become a ``config`` failure."""
        link = lease.claim.link
        try:
            if lease.claim.accepted:
                return await publisher.finish(self.parts, lease)
            await self.parts.files.restore(lease)
            return await links.work(self.parts, lease, attempts)
        except SettingsError as error:
            log.error("turn.set_up_wrong", link=str(link), error=str(error)[:200])
            return cannot_judge(link, str(error))
        except SessionFilesError as error:
            log.error("session.not_here", link=str(link), error=str(error)[:200])
            return await self._without_files(lease, error)
        except OSError as error:
            if not await self.parts.threads.files(self.parts.host.look):
                raise
            log.warning("turn.given_back", link=str(link), error=str(error)[:200])
            return given_back(lease.claim.turn, link, "host")
