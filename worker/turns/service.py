"""Carries out the links of turns' chains: claim, work (``links.py``), commit, announce the next link.

The claim or the commit refuses what happens twice or late; a reaper delivers again what stops half-way. So the code
reads as if each link ran once, and may die at any line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import structlog
from redis.exceptions import ResponseError

from api_client.contract.attempt import AttemptRecord
from api_client.contract.counters import label
from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import arrive
from api_client.contract.phases.phase_checks import PhaseError
from api_client.contract.tasks import JUDGED_BY, PHASE_RUN, PHASE_VERIFY, QUEUES, RUN_QUEUE, VALIDATE, Link
from api_client.contract.turn import Failing, Outcome
from api_client.contract.worker_reports import WorkerReport, worker_of
from api_client.turns.record.claim import Claim, Committed, Fenced, JudgingPaused
from api_client.turns.record.moves import Move
from worker.turns import flower_text, folders, links, publisher
from worker.turns.leases.lease import Lease
from worker.turns.parts import EngineParts
from worker.turns.slots import Seat, nowhere
from worker.turns.transitions.after_judging import cannot_judge
from worker.turns.transitions.after_run import elsewhere, given_back
from worker.turns.transitions.judged_run import JudgedRun
from worker.turns.validation import at_once

log = structlog.get_logger()

_RECORD_LOST = "the store no longer has this turn: it was emptied, or restarted without its append-only file"

#: Until a turn that this worker left to others is announced again, in seconds.
_SOON_SECONDS = 0.5

#: The code of an error by which a worker's set-up is wrong.
_SET_UP = "config"
#: Links that need the folder of a phase.
_OF_PHASES = frozenset({PHASE_RUN, PHASE_VERIFY})
_SUCCESSES = frozenset(outcome.value for outcome in Outcome if outcome.success)


class TaskReport(Protocol):
    """Shows operators the current task: ``task_events.TaskStory``."""

    @property
    def task_id(self) -> str:
        """The Celery task's id; empty when nobody watches."""
        ...

    def state(self, state: str, words: str) -> None:
        """The task's new state, and words for people."""
        ...

    def end(self, words: str, *, failed: bool = False) -> None:
        """The task has ended; the words say how."""
        ...

    def following(self, link: Link | None) -> str:
        """The Celery task's id of the next link, if it is carried out here too; empty when nobody watches."""
        ...

    def follow(self, link: Link) -> None:
        """The next task is carried out here too, in place."""
        ...


class NoTaskReport:
    """For callers whose tasks no operator watches."""

    task_id = ""

    def state(self, state: str, words: str) -> None:
        """Nobody listens."""

    def end(self, words: str, *, failed: bool = False) -> None:
        """Nobody listens."""

    def following(self, _link: Link | None) -> str:
        """Nobody watches."""
        return ""

    def follow(self, link: Link) -> None:
        """Nobody listens."""


class TurnService:
    """Carries out the links of turns' chains. One per worker process, in its event loop."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts

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
        report, seat = report or NoTaskReport(), seat or nowhere()
        await arrive("task.received")
        if self.parts.host.sick:  # received before it was known: leave it to another worker
            report.end(f"not here: {self.parts.host.sick}")
            await self.parts.threads.files(self.parts.announce, link, turn_id, session_id)
            return
        claim = await self._claimed(link, turn_id, session_id, alone, report)
        if claim is None:
            return
        with self.parts.leases.hold(claim) as lease:
            while following := await self._carried_out(lease, seat, alone, report):
                lease.go_on(following)
                seat.settle(QUEUES[following.link.task])
                structlog.contextvars.bind_contextvars(attempt=following.link.attempt)
                report.follow(following.link)

    async def _carried_out(self, lease: Lease, seat: Seat, alone: bool, report: TaskReport) -> Claim | None:
        """Carry out the claimed link. Returns the claim of the next one, if that is carried out in place."""
        claim = lease.claim
        link, turn = claim.link, claim.turn
        try:
            attempts = await self.parts.ledger.attempts(claim)
            report.state(flower_text.STATES[link.task], flower_text.beginning(turn, link, attempts))
            move = await self._work(lease, attempts)
            if (failing := move.fields.values.get("failing")) and failing.code == _SET_UP:
                move = await self._set_up(lease, move, failing)
            await arrive("link.decided")
            link, move, done = await self._stored(lease, attempts, move, seat, alone, report)
        except Fenced:
            await self._fenced(claim, report)
            return None
        outcome = done.outcome if isinstance(done, Committed) else ""
        report.end(flower_text.ending(turn, link, move, outcome), failed=flower_text.is_failure(link, outcome))
        if not outcome and move.next and move.next.task == JUDGED_BY.get(link.task):
            await arrive("run.committed")
        following = done if isinstance(done, Claim) else None
        judged = link != claim.link
        await links.settle(self.parts, lease, following, published=judged and outcome in _SUCCESSES)
        if isinstance(done, Committed):
            await self._go_on(claim, move, done)
        return following

    async def _stored(
        self, lease: Lease, attempts: list[AttemptRecord], move: Move, seat: Seat, alone: bool, report: TaskReport
    ) -> tuple[Link, Move, Claim | Committed]:
        """Store a link's move; for a run whose answer can be judged at once, together with the verdict.

        Returns the last link carried out, its move, and the store's reply.

        Raises:
            Fenced: another worker has the turn.
        """
        link, turn = lease.claim.link, lease.claim.turn
        judged: JudgedRun | None = None
        if move.next and move.next.task == VALIDATE and self._stays(lease, move, seat, alone):
            judged = await at_once(self.parts, lease, move, attempts)
        if judged is None:
            return link, move, await self._store(lease, move, seat, alone, report)
        report.end(flower_text.ending(turn, link, move, ""))
        link = Link(VALIDATE, link.attempt)
        report.follow(link)
        report.state(flower_text.STATES[link.task], flower_text.beginning(turn, link, attempts))
        await arrive("link.decided")
        try:
            return link, judged.verdict, await self._store(lease, judged.move, seat, alone, report)
        except JudgingPaused:
            return link, replace(move, events=[]), await self._store(lease, move, seat, alone, report)

    async def _store(self, lease: Lease, move: Move, seat: Seat, alone: bool, report: TaskReport) -> Claim | Committed:
        stays, lease.giving_back = self._stays(lease, move, seat, alone), True
        if stays:
            return await self.parts.ledger.advance(lease.claim, move, report.following(move.next))
        return await self.parts.ledger.commit(lease.claim, move)

    def _stays(self, lease: Lease, move: Move, seat: Seat, alone: bool) -> bool:
        """Return whether this process carries out the next link at once, in place; it needs a free slot for that.

        Other processes may take a link that is delivered again, and the delivery before the last strike needs a process
        that does nothing else.
        """
        if move.next is None or move.outcome or move.delay_ms or move.park_seconds or move.next == lease.claim.link:
            return False
        if alone or lease.reason or self.parts.host.sick or lease.claim.turn.strikes >= self.parts.settings.strikes - 1:
            return False
        return seat.may_go_on(QUEUES[move.next.task])

    async def _claimed(
        self, link: Link, turn_id: str, session_id: str, alone: bool, report: TaskReport
    ) -> Claim | None:
        """The claim; None when the turn cannot be taken."""
        try:
            lack = await self._lack(turn_id, link) if link.task in _OF_PHASES else ""
            claim = await self.parts.ledger.claim(
                turn_id, session_id, link, alone=alone, task=report.task_id, models=self.parts.ability.labels, lack=lack
            )
        except (ResponseError, ValueError) as error:
            await self.parts.ledger.put_aside(turn_id, error)
            report.end("its record is damaged")
            return None
        if isinstance(claim, Claim):
            return claim
        if claim.why == "missing":
            log.error("turn.record_lost", link=str(link), hint=_RECORD_LOST)
        log.info("turn.refused", link=str(link), why=claim.why)
        report.end(f"nothing to do: {claim.why.replace('_', ' ')}")
        if claim.why == "elsewhere" and await self._who_can(link, turn_id):
            # Soon again, until one of those takes it; where nobody can, the wait for each announcement doubles.
            await self.parts.ledger.put_off(turn_id, _SOON_SECONDS)
        if claim.why == "alone":
            await self.parts.threads.runs(self.parts.isolate, link, turn_id, session_id)
        return None

    async def _lack(self, turn_id: str, link: Link) -> str:
        """Return why this worker cannot carry out a link of a phase: it has not its folder. Empty where it has."""
        turn = await self.parts.ledger.turn(turn_id)
        try:
            if turn:
                await self.parts.threads.files(folders.folder_of, self.parts.settings, turn)
        except (SettingsError, PhaseError) as error:
            log.warning("turn.not_here", turn_id=turn_id, link=str(link), error=str(error)[:200])
            return str(error)
        return ""

    async def _who_can(self, link: Link, turn_id: str) -> list[WorkerReport]:
        """The processes of other workers that may carry out a link that this one leaves to them."""
        turn = await self.parts.ledger.turn(turn_id)
        if turn is None:
            return []
        model, queue = label(turn.stage_model or turn.request.model), QUEUES[link.task]
        return [
            each
            for each in await self.parts.ledger.others()
            if queue in each.queues
            and not (each.sick or each.quiet or each.stalled or each.worker in turn.lacks)
            and not (queue == RUN_QUEUE and each.cannot_run(model))
            and not any(word in f"{each.name}$" for word in turn.avoid.split())
        ]

    async def _set_up(self, lease: Lease, move: Move, failing: Failing) -> Move:
        """The move; a link that a wrong set-up of this worker would end as an error is left to others, if any can.

        Each worker that can takes it once: then what is wrong is the turn's, or everybody's. A model that no worker can
        run, and a phase whose folder no worker has, wait until one can, or has it.
        """
        turn, link = lease.claim.turn, lease.claim.link
        cannot = await self.parts.threads.files(self.parts.ability.look)
        model = turn.stage_model or turn.request.model
        here = (model in cannot and QUEUES[link.task] == RUN_QUEUE) or (
            link.task in _OF_PHASES and bool(await self._lack(turn.turn_id, link))
        )
        if not here and not await self._who_can(link, turn.turn_id):
            return move
        log.error("turn.not_here", link=str(link), error=failing.reason[:200])
        name = self.parts.ledger.worker
        return elsewhere(turn, given_back(turn, link, "set_up"), f"{worker_of(name).partition('@')[0]}-")

    async def _fenced(self, claim: Claim, report: TaskReport) -> None:
        if await self.parts.ledger.knows(claim.turn.turn_id):
            log.warning("turn.fenced", link=str(claim.link))
        else:
            log.error("turn.record_lost", link=str(claim.link), hint=_RECORD_LOST)
        report.end("WorkerLost: another worker has the turn", failed=True)

    async def _go_on(self, claim: Claim, move: Move, done: Committed) -> None:
        """Announce the next link to Celery. Not vital: a reaper announces what this misses."""
        turn_id, session_id = claim.turn.turn_id, claim.turn.request.session_id
        if done.outcome:
            log.info("turn.finished", outcome=done.outcome, attempt=claim.link.attempt)
            await arrive("turn.finished")
            if done.head and (head_link := await self.parts.ledger.next_link(done.head)):
                await self.parts.threads.files(self.parts.announce, head_link, done.head, session_id)
            return
        if move.next is not None and not move.delay_ms:
            await self.parts.threads.files(self.parts.announce, move.next, turn_id, session_id)

    async def _work(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Carry out the claimed link. A wrong set-up ends the turn as an error of kind ``config``."""
        link = lease.claim.link
        try:
            if lease.claim.accepted:
                return await publisher.finish(self.parts, lease)
            return await links.work(self.parts, lease, attempts)
        except (SettingsError, PhaseError) as error:
            log.error("turn.set_up_wrong", link=str(link), error=str(error)[:200])
            return cannot_judge(link, str(error))
        except OSError as error:
            if not await self.parts.threads.files(self.parts.host.look):
                raise
            log.warning("turn.given_back", link=str(link), error=str(error)[:200])
            return given_back(lease.claim.turn, link, "host")
