"""Carries out the links of turns' chains: claim, work, commit."""

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
from api_client.contract.tasks import FAIL, RUN_QUEUE, TASKS, VALIDATE, Link, all_tasks, find_queue
from api_client.contract.turn import Outcome, PendingFailure, Turn
from api_client.contract.worker_reports import WorkerReport, worker_of
from api_client.snapshots.objects import FilesLost, FilesUnavailable
from api_client.store.commands import BEGUN
from api_client.turns.record.claim import Claim, CommitResult, JudgingPaused, LeaseLost, Refusal
from api_client.turns.record.moves import Move
from worker.files.recent import Recent
from worker.files.snapshots import SessionTooLarge
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

#: Until a turn that this worker left to others is announced again, in seconds.
_SOON_SECONDS = 0.5

#: Until a turn that was left to another worker is looked at again, in seconds; each time so much longer.
_FIRST_WAIT = 0.02
#: The code of an error by which a worker's set-up is wrong.
_SET_UP = "config"
_SUCCESSES = frozenset(outcome.value for outcome in Outcome if outcome.success)


class TaskReport(Protocol):
    """Shows operators the current task (``TaskStory``); by itself it shows it to nobody."""

    @property
    def task_id(self) -> str:
        """The Celery task's id; empty when nobody watches."""
        return ""

    def start(self, words: str) -> None:
        """The task has begun; the words say at what."""
        return

    def end(self, words: str, *, failed: bool = False) -> None:
        """The task has ended; the words say how."""
        return

    def following(self, _link: Link | None) -> str:
        """The Celery task's id of the next link, if it is carried out here too; empty when nobody watches."""
        return ""

    def follow(self, link: Link) -> None:
        """The next task is carried out here too, in place."""
        return


class NoTaskReport(TaskReport):
    """For callers whose tasks no operator watches."""


@dataclass(frozen=True, slots=True)
class _Visit:
    """A turn's stay in this process, which does nothing else when ``alone``."""

    seat: Seat
    report: TaskReport
    alone: bool


class TurnService:
    """Carries out the links of turns' chains. One per worker process, in its event loop."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        #: Turns that this worker has met, and what of them it does not know: a later version may.
        self._unknown = Recent[str, str](most=256)

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
        """Carry out one link of a turn, and the next ones in place as long as this process has a slot for them.

        A link that is not carried out in place is announced. ``seat`` is the turn's place in this process; without one,
        only the first link is carried out. ``alone``: this process does nothing else.

        Raises:
            RedisError: the store stayed away; the turn will be delivered again.
        """
        # Without a seat no link is carried on in place.
        visit = _Visit(seat or Seat(Slots({})), report or NoTaskReport(), alone)
        await arrive("task.received")
        if why := self.parts.host.sick or ("it ends" if self.parts.ends() else ""):  # received before that was known
            visit.report.end(f"not here: {why}")
            await self.parts.threads.files(self.parts.announce, link, turn_id, session_id)
            return
        claim = await self._claimed(link, turn_id, session_id, visit)
        if not self.parts.settings.has_queues:  # else the claim did so
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
        """Carry out the claimed link. Returns the claim of the next one, if that is carried out in place."""
        claim, report = lease.claim, visit.report
        link, turn = claim.link, claim.turn
        try:
            attempts = await self.parts.ledger.attempts(claim)
            report.start(beginning(turn, link, attempts))
            if self.parts.ends() and find_queue(link.task) == RUN_QUEUE:  # it starts elsewhere, at once
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
        # It gave the turn up, or the turn ended with it and has no answer. One that somebody cancelled did not fail.
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
        """Store a link's move; for a run whose answer can be judged at once, together with the verdict.

        Returns the last link carried out, its move, and the store's reply.

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
        except JudgingPaused:
            return link, replace(move, events=[]), await self._store(lease, move, visit)

    async def _store(self, lease: Lease, move: Move, visit: _Visit) -> Claim | CommitResult:
        """Store a move with the snapshot of the session's files.

        A turn that ends does so also where its files cannot be kept now: its session stays as it was. A sealed answer's
        snapshot is the one of its seal then.
        """
        files, link = "", lease.claim.link
        try:
            files = "" if link.task == FAIL else await self.parts.files.save(lease, bounded=not move.outcome)
        except (SessionTooLarge, FilesUnavailable) as error:
            log.error("session.not_kept", link=str(link), error=str(error)[:200])
            move = move if move.outcome else await self._without_files(lease, error)
        stays, lease.giving_back = self._stays(lease, move, visit), True
        if stays:
            return await self.parts.ledger.advance(lease.claim, move, visit.report.following(move.next), files)
        return await self.parts.ledger.commit(lease.claim, move, files)

    async def _without_files(self, lease: Lease, error: HelixError) -> Move:
        """The move of a link whose session's files cannot be brought, or kept."""
        turn, link = lease.claim.turn, lease.claim.link
        if not isinstance(error, FilesUnavailable):
            return cannot_judge(link, str(error), error.code)
        await self.parts.threads.files(self.parts.host.look)
        return without_files(turn, link, str(error))

    def _stays(self, lease: Lease, move: Move, visit: _Visit) -> bool:
        """Return whether this process carries out the next link at once, in place; it needs a free slot for that.

        Other processes may take a link that is delivered again, and the delivery before the last strike needs a process
        that does nothing else.
        """
        if move.next is None or move.outcome or move.delay_ms or move.suspend_seconds or move.next == lease.claim.link:
            return False
        parts, turn = self.parts, lease.claim.turn
        if visit.alone or lease.reason or parts.host.sick or turn.strikes >= parts.settings.strikes - 1:
            return False
        queue = find_queue(move.next.task)
        return not (parts.ends() and queue == RUN_QUEUE) and visit.seat.may_go_on(queue)

    async def _claimed(self, link: Link, turn_id: str, session_id: str, visit: _Visit) -> Claim | None:
        """The claim; None when the turn cannot be taken."""
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
            # Soon again, until one of those takes it; where nobody can, the wait for each announcement doubles.
            await self.parts.ledger.put_off(turn_id, _SOON_SECONDS)
        if claim.why == "alone":
            await self.parts.threads.runs(self.parts.isolate, link, turn_id, session_id)
        return None

    async def _asked(self, link: Link, turn_id: str, session_id: str, visit: _Visit) -> Claim | Refusal:
        """The claim. A run is first left to the worker with an affinity to its session, which is rung for it.

        That one has ``affinity_patience`` to claim it; the store counts them, and no other gets the turn before.
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
        """Return why this worker cannot carry out a link that a kind of work added; empty where it can."""
        turn = await self.parts.ledger.turn(turn_id)
        try:
            if turn:
                await self.parts.threads.files(folders.folder_of, self.parts.settings, turn)
        except SettingsError as error:
            log.warning("turn.not_here", turn_id=turn_id, link=str(link), error=str(error)[:200])
            return str(error)
        return ""

    async def _who_can(self, link: Link, turn_id: str) -> list[WorkerReport]:
        """The processes of other workers that may carry out a link that this one leaves to them."""
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
        """The move; a link that a wrong set-up of this worker would end as an error is left to others, if any can.

        Each worker that can takes it once: then what is wrong is the turn's, or everybody's. A model that no worker can
        run, work whose folder no worker has, and a rule that this worker does not know, wait until one can.
        """
        turn, link = lease.claim.turn, lease.claim.link
        cannot = await self.parts.threads.files(self.parts.ability.look)
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
        """Return which rule of a turn this worker does not know; empty where it knows all."""
        strange = [name for name in self.parts.policies.plain_rules(turn) if name not in offered_validators()]
        return self.parts.policies.problem(turn) or (f"it has no validator {strange[0]!r}" if strange else "")

    async def _go_on(self, claim: Claim, move: Move, done: CommitResult) -> None:
        """Announce the next link to Celery. Not vital: a reaper announces what this misses."""
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
        """Announce the turns that may go now. Not vital either."""
        with contextlib.suppress(RedisError):
            for link, each, session_id in (await self.parts.ledger.release()).left:
                await self.parts.threads.files(self.parts.let_go, link, each, session_id)

    async def _work(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Carry out the claimed link. A wrong set-up ends the turn as an error of kind ``config``."""
        link = lease.claim.link
        try:
            if lease.claim.accepted:
                return await publisher.finish(self.parts, lease)
            await self.parts.files.restore(lease)
            return await links.work(self.parts, lease, attempts)
        except SettingsError as error:
            log.error("turn.set_up_wrong", link=str(link), error=str(error)[:200])
            return cannot_judge(link, str(error))
        except (FilesLost, FilesUnavailable, SessionTooLarge) as error:
            log.error("session.not_here", link=str(link), error=str(error)[:200])
            return await self._without_files(lease, error)
        except OSError as error:
            if not await self.parts.threads.files(self.parts.host.look):
                raise
            log.warning("turn.given_back", link=str(link), error=str(error)[:200])
            return given_back(lease.claim.turn, link, "host")
