"""The work of each link of a turn's chain: from a claimed turn to its next move.

Agents run as coroutines of the process's event loop, or in threads if their runner blocks. Methods that touch files,
judge answers or wait for programs are not coroutines: they run in threads.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from api_client.contract.attempt import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.event_kinds import Body
from api_client.contract.failpoints import reach
from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.phases.phase_checks import PhaseError
from api_client.contract.settings import Settings
from api_client.contract.tasks import (
    FAIL,
    FALLBACK,
    JUDGED_BY,
    PHASE_RUN,
    PHASE_VERIFY,
    RESUME,
    RETRY,
    RUN,
    VALIDATE,
)
from api_client.contract.turn import Failing, Turn, TurnState
from api_client.contract.values.redaction import redactor
from api_client.policies.kept import StoredPolicies
from worker.enforcement.examine import refused
from worker.enforcement.policy import demote
from worker.files.workspace import written_files
from worker.runners.base import BuildRunner
from worker.turns import folders
from worker.turns.agent_run import AgentRun
from worker.turns.judges import CannotJudge
from worker.turns.leases.host import Host
from worker.turns.leases.lease import Lease
from worker.turns.loops.threads import Threads
from worker.turns.phases import phase_folders
from worker.turns.phases.verification import Verification
from worker.turns.publisher import Publisher
from worker.turns.record.claim import Claim
from worker.turns.record.ledger import Ledger
from worker.turns.transitions.after_decision import after_decision
from worker.turns.transitions.after_judging import after_fallback, after_giving_up, cannot_judge
from worker.turns.transitions.after_run import after_run
from worker.turns.transitions.after_verification import after_verification, not_reached
from worker.turns.transitions.backoff import Delays
from worker.turns.transitions.judged_run import JudgedRun
from worker.turns.transitions.moves import Move
from worker.turns.transitions.usage import with_judging
from worker.turns.validation import Judging, Validation

log = structlog.get_logger()

BlockingWork = Callable[[Lease, list[AttemptRecord]], Move]
Work = Callable[[Lease, list[AttemptRecord]], Awaitable[Move]]


class Links:
    """The work of every link. One per worker process."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        threads: Threads,
        runners: BuildRunner,
        judges: Judging,
        publisher: Publisher,
        host: Host,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._threads = threads
        self._runners = runners
        self._judges = judges
        self._publisher = publisher
        self._host = host
        self._policies = StoredPolicies(ledger.policy)
        self._validation = Validation(settings, threads, runners, judges, publisher, self._policies, host)
        self._redact = redactor(settings)
        self._works: dict[str, Work] = {
            RUN: self._run,
            RETRY: self._run,
            VALIDATE: self._validation.validate,
            FALLBACK: self._in_checks(self._fallback),
            FAIL: self._in_checks(self._fail),
            RESUME: self._in_checks(self._resume),
            PHASE_RUN: self._run,
            PHASE_VERIFY: self._in_runs(self._verify),
        }

    async def work(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Carry out the claimed link; ``attempts`` are the turn's so far.

        Raises:
            Fenced: another worker has the turn. SettingsError, PhaseError: the set-up is wrong.
        """
        task = lease.claim.link.task
        if task in {VALIDATE, FALLBACK, PHASE_VERIFY}:
            await self._policies.load(lease.claim.turn)
        elif task in {RUN, RETRY}:
            await self._policies.load_template(lease.claim.turn)
        return await self._works[lease.claim.link.task](lease, attempts)

    async def judged_at_once(self, lease: Lease, run: Move, attempts: list[AttemptRecord]) -> JudgedRun | None:
        """As ``Validation.at_once``. Raises the same."""
        await self._policies.load(lease.claim.turn)
        return await self._validation.at_once(lease, run, attempts)

    async def settle(self, lease: Lease, following: Claim | None, *, published: bool) -> None:
        """Remove the recordings of runs after the link is committed: no worker has to adopt them any more.

        Args:
            lease: with the claim of the link that is committed.
            following: the claim of the next link, where that is carried out in place. Before it runs an agent again,
                ``AgentRun`` removes the recording of the attempt before.
            published: they were removed when the answer was published.
        """
        claim = lease.claim
        ended = folders.unforgotten(self._settings, claim, self._runners, went_on=lease.went_on)
        alone = len(ended) == 1 and following is not None and following.link.task in JUDGED_BY
        if ended and not alone and not published:
            await self._threads.files(folders.forget_runs, self._settings, claim.turn, ended)

    def _in_checks(self, work: BlockingWork) -> Work:
        return lambda lease, attempts: self._threads.checks(work, lease, attempts)

    def _in_runs(self, work: BlockingWork) -> Work:
        return lambda lease, attempts: self._threads.runs(work, lease, attempts)

    async def _run(self, lease: Lease, records: list[AttemptRecord]) -> Move:
        """Run the agent once: for the user's message, or for the feedback on the attempt before."""
        turn, link = lease.claim.turn, lease.claim.link
        history = [record for record in records if record.number < link.attempt]
        broken = [record for record in records if record.number == link.attempt and record.goes_on]
        if turn.request.after and link.attempt == 1 and (stopped := await self._stopped_before(turn)):
            return not_reached(turn, link, turn.request.after, stopped)
        run = AgentRun(
            self._settings,
            self._ledger,
            self._threads,
            self._runners,
            self._host,
            lease,
            self._policies,
            history,
            broken,
        )
        result = await run.run()
        return after_run(
            turn,
            link,
            result,
            unsent=run.unsent,
            prompt=run.prompt,
            sent=result.sent.to_dict(self._redact) if result.sent else None,
            history=history,
            stop=lease.reason,
            transient_retries=self._settings.transient_retries,
            strikes=self._settings.strikes,
            delays=Delays(
                first=self._settings.transient_delay_seconds,
                busy=self._settings.busy_delay_seconds,
                left=lease.deadline - time.monotonic(),
            ),
        )

    async def _stopped_before(self, turn: Turn) -> str:
        """The outcome of the turn that had to pass before this one; empty when it passed."""
        before = await self._ledger.turn(turn.request.after)
        if before is None or before.outcome is None:
            return "unknown"
        return "" if before.outcome.success else before.outcome.value

    def _fallback(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Repair the best answer as far as the active validators can, and judge it again."""
        turn, link = lease.claim.turn, lease.claim.link
        records = {record.number: record for record in attempts}
        best = records[turn.best or link.attempt]
        tried = [record for number, record in sorted(records.items()) if number <= best.number]
        found = folders.kept(self._settings, turn, tried)
        try:
            repaired = self._judges.repair(
                self._validation.case(turn, best.answer, found.files, list(records.values()))
            )
        except CannotJudge as error:
            return cannot_judge(link, str(error))
        wrong = (*found.lost, *refused(found.refused, turn.request.locale))
        repaired = replace(repaired, issues=(*repaired.issues, *wrong))
        move = with_judging(turn, after_fallback(turn, link, best.number, repaired), repaired.spent)
        return self._publisher.accept_with_files(lease, move, best, {**found.files, **repaired.files})

    def _verify(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Check a phase's output: its gates, each reported as it ends, then a verifier if it asks for one."""
        turn, link, claim = lease.claim.turn, lease.claim.link, lease.claim
        this = attempts[-1]
        if this.number != link.attempt:
            raise ValueError(f"attempt {link.attempt} of {turn.turn_id} has no record")
        output = folders.delivery_folder(self._settings, turn, this) / phase_folders.OUTPUT
        last = link.attempt >= (turn.allowed or turn.request.max_attempts)

        def judge() -> tuple[ValidationIssue, ...]:
            case = self._validation.case(turn, this.text, written_files(output.parent), ())
            return demote(self._judges.judge(case).issues, case.policy, final=last)

        def append(events: list[Body]) -> None:
            self._threads.asked(self._ledger.append(claim, events))

        verification = Verification(self._settings, turn, this, lease, append, output, judge)
        try:
            result = verification.run()
        except CannotJudge as error:
            return cannot_judge(link, str(error))
        reach("validation.started")
        move = after_verification(turn, link, this, result, lease.reason)
        if move.state is TurnState.PARKED:
            self._put_feedback_away(turn)
        return self._publisher.accept_with_files(lease, move, this)

    def _resume(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """Carry out a person's decision on a parked turn."""
        turn, link = lease.claim.turn, lease.claim.link
        records = {record.number: record for record in attempts}
        best = records.get(turn.best or link.attempt)
        move = after_decision(turn, link.attempt, best)
        if best is None:
            return move
        if turn.request.phase is not None:
            return self._publisher.accept_with_files(lease, move, best)
        tried = [record for number, record in sorted(records.items()) if number <= best.number]
        return self._publisher.accept_with_files(lease, move, best, folders.kept(self._settings, turn, tried).files)

    def _fail(self, lease: Lease, attempts: list[AttemptRecord]) -> Move:
        """End the turn as failed, and tell its user what to do."""
        turn, link = lease.claim.turn, lease.claim.link
        records = {record.number: record for record in attempts}
        shown = records.get(turn.best or link.attempt)
        issues = (shown.remaining or shown.issues) if shown else ()
        if turn.request.phase is not None:
            self._put_feedback_away(turn)
        return after_giving_up(turn, link, turn.failing or Failing(), issues)

    def _put_feedback_away(self, turn: Turn) -> None:
        """Keep a phase's last feedback. If its folder has vanished, there is none to keep, and the turn still ends."""
        try:
            phase_folders.put_feedback_away(folders.folder_of(self._settings, turn), turn)
        except (SettingsError, PhaseError) as error:
            log.warning("feedback.not_archived", reason=str(error)[:200])
