"""One method per link of a turn's chain: claim, do the work, say what follows, commit.

Whatever happens twice or late is refused by the claim or the commit; whatever stops half-way is delivered again by a
reaper. So each method is written as if it ran once, and may die at any line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog
from redis.exceptions import ResponseError

from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import reach
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
    Link,
)
from api_client.contract.turn import AttemptRecord, Turn, TurnState
from worker.enforcement.policy import Attempt, Repaired, decide
from worker.enforcement.refused import refused
from worker.turns import flower_text, folders
from worker.turns.agent_run import AgentRun, BuildRunner
from worker.turns.judges import CannotJudge, Case
from worker.turns.leases.host import Host
from worker.turns.leases.lease import Lease, LeaseKeeper
from worker.turns.phases import phase_folders
from worker.turns.phases.verification import Verification
from worker.turns.publisher import Publisher
from worker.turns.record.claim import Claim, Committed, Fenced, Refusal
from worker.turns.record.ledger import Ledger
from worker.turns.transitions.accepted import Accepted
from worker.turns.transitions.after_decision import after_decision
from worker.turns.transitions.after_judging import after_fallback, after_giving_up, after_validation, cannot_judge
from worker.turns.transitions.after_run import after_run, given_back
from worker.turns.transitions.after_verification import after_verification, not_reached
from worker.turns.transitions.backoff import Delays
from worker.turns.transitions.moves import Move, asked_anew, judged, policy_of
from worker.turns.transitions.usage import Usage

log = structlog.get_logger()

_RECORD_LOST = "the store no longer has this turn: it was emptied, or restarted without its append-only file"

#: Tells Celery of a turn's next link: the link, the turn's id, its session's.
Announce = Callable[[Link, str, str], None]
#: Told what is being done, and the words for it.
Tell = Callable[[str, str], None]


def _untold(_state: str, _words: str) -> None:
    """For callers without operators who watch."""


class Judging(Protocol):
    """Who judges and repairs answers: ``judges.Judges``, or a test's own."""

    def judge(self, case: Case) -> Attempt:
        """Judge a new attempt.

        Raises:
            CannotJudge: the validators cannot be made.
        """
        ...

    def repair(self, case: Case) -> Repaired:
        """Repair a judged answer. Raises as ``judge``."""
        ...


class TurnService:
    """Carries out the links of turns' chains. One per worker process, used by many threads."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        leases: LeaseKeeper,
        runners: BuildRunner,
        judges: Judging,
        announce: Announce,
        isolate: Announce,
        host: Host,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._leases = leases
        self._runners = runners
        self._judges = judges
        self._announce = announce
        self._isolate = isolate
        self._host = host
        self._publisher = Publisher(settings, ledger, host)
        self._works: dict[str, Callable[[Lease], Move]] = {
            RUN: self._run,
            RETRY: self._run,
            VALIDATE: self._validate,
            FALLBACK: self._fallback,
            FAIL: self._fail,
            RESUME: self._resume,
            PHASE_RUN: self._run,
            PHASE_VERIFY: self._verify,
        }

    def carry_out(
        self, link: Link, turn_id: str, session_id: str, *, alone: bool = False, tell: Tell = _untold
    ) -> bool:
        """Carry out one link; returns True when the rest of the Celery chain may go on.

        The chain goes on only after a run that is to be validated; in every other case the next link was announced
        here, or there is none. ``alone`` says that this process does nothing else and has no chain. ``tell`` is told
        (what is being done, the words operators read); the first is empty when it is over.

        Raises:
            RedisError: the store stayed away; the turn will be delivered again.
        """
        if self._host.sick:  # received before it was known: somebody else is to have it
            tell("", f"not here: {self._host.sick}")
            self._announce(link, turn_id, session_id)
            return False
        try:
            claim = self._ledger.claim(turn_id, session_id, link, alone=alone)
        except (ResponseError, ValueError) as error:
            self._ledger.put_aside(turn_id, error)
            tell("", "its record is damaged")
            return False
        if isinstance(claim, Refusal):
            if claim.why == "missing":
                log.error("turn.record_lost", link=str(link), hint=_RECORD_LOST)
            log.info("turn.refused", link=str(link), why=claim.why)
            tell("", f"nothing to do: {claim.why.replace('_', ' ')}")
            if claim.why == "alone":
                self._isolate(link, turn_id, session_id)
            return False
        with self._leases.hold(claim) as lease:
            try:
                history = self._ledger.attempts(turn_id) if link.task in {RETRY, PHASE_RUN} else []
                tell(flower_text.STATES[link.task], flower_text.beginning(claim.turn, link, history))
                move = self._work(lease)
                reach("link.decided")
                done = self._ledger.commit(claim, move)
            except Fenced:
                if self._ledger.knows(turn_id):
                    log.warning("turn.fenced", link=str(link))
                else:
                    log.error("turn.record_lost", link=str(link), hint=_RECORD_LOST)
                tell("", "another worker has the turn")
                return False
        tell("", flower_text.ending(claim.turn, link, move, done))
        goes_on = self._go_on(claim, move, done)
        if goes_on and alone and move.next is not None:
            self._announce(move.next, turn_id, session_id)
        return goes_on

    def answer_probe(self, queue: str, nonce: str) -> None:
        """Say that this worker claimed a probe (``api_client/workers/probe.py``).

        Raises:
            RedisError: the store does not answer.
        """
        self._ledger.answer_probe(queue, nonce)

    def _go_on(self, claim: Claim, move: Move, done: Committed) -> bool:
        """Tell Celery what comes next. Not vital: a reaper announces whatever is not announced here."""
        turn_id, session_id = claim.turn.turn_id, claim.turn.request.session_id
        if done.outcome:
            log.info("turn.finished", outcome=done.outcome, attempt=claim.link.attempt)
            reach("turn.finished")
            if done.head and (head_link := self._ledger.next_link(done.head)):
                self._announce(head_link, done.head, session_id)
            return False
        log.info("turn.moved", link=str(claim.link), next=str(move.next), delay_ms=move.delay_ms)
        judged_by = JUDGED_BY.get(claim.link.task)
        if judged_by and move.next == Link(judged_by, claim.link.attempt):
            return True
        if move.next is not None and not move.delay_ms:
            self._announce(move.next, turn_id, session_id)
        return False

    def _work(self, lease: Lease) -> Move:
        """Carry out the claimed link. What is wrong with the installation ends the turn as an error of the set-up."""
        link = lease.claim.link
        try:
            return self._publisher.finish(lease) if lease.claim.accepted else self._works[link.task](lease)
        except (SettingsError, PhaseError) as error:
            log.error("turn.set_up_wrong", link=str(link), error=str(error)[:200])
            return cannot_judge(link, str(error))
        except OSError as error:
            if not self._host.look():
                raise
            log.warning("turn.given_back", link=str(link), error=str(error)[:200])
            return given_back(lease.claim.turn, link, "host")

    def _run(self, lease: Lease) -> Move:
        """Run the agent once: for the user's message, or for the feedback on the attempt before."""
        turn, link = lease.claim.turn, lease.claim.link
        records = self._ledger.attempts(turn.turn_id)
        history = [record for record in records if record.number < link.attempt]
        broken = [record for record in records if record.number == link.attempt and record.goes_on]
        if turn.request.after and link.attempt == 1 and (stopped := self._stopped_before(turn)):
            return not_reached(turn, link, turn.request.after, stopped)
        run = AgentRun(self._settings, self._ledger, self._runners, self._host, lease, history, broken)
        result = run.run()
        return after_run(
            turn,
            link,
            result,
            prompt=run.prompt,
            history=history,
            stop=lease.reason,
            transient_retries=self._settings.transient_retries,
            delays=Delays(
                first=self._settings.transient_delay_seconds,
                busy=self._settings.busy_delay_seconds,
                left=lease.deadline - time.monotonic(),
            ),
        )

    def _stopped_before(self, turn: Turn) -> str:
        """How the turn ended that had to pass before this one; empty when it passed."""
        before = self._ledger.turn(turn.request.after)
        if before is None or before.outcome is None:
            return "unknown"
        return "" if before.outcome.success else before.outcome.value

    def _validate(self, lease: Lease) -> Move:
        """Judge the attempt's answer with the active validators, and decide."""
        turn, link = lease.claim.turn, lease.claim.link
        *before, this = self._ledger.attempts(turn.turn_id)
        if this.number != link.attempt:
            raise ValueError(f"attempt {link.attempt} of {turn.turn_id} has no record")
        history = judged(before)
        delivered, lost = folders.kept(self._settings, turn, [*before, this])
        case = self._case(turn, this.text, delivered.files, history, fresh=asked_anew(before))
        try:
            attempt = self._judges.judge(case)
        except CannotJudge as error:
            return cannot_judge(link, str(error))
        attempt = replace(attempt, issues=(*attempt.issues, *lost, *refused(delivered.refused, turn.request.locale)))
        reach("validation.started")
        decision = decide([*history, attempt], policy_of(turn))
        move = after_validation(turn, link, attempt, decision, Usage.of(this.usage))
        return self._accept(lease, move, this, delivered.files)

    def _fallback(self, lease: Lease) -> Move:
        """Repair the best answer as far as the active validators can, and judge it again."""
        turn, link = lease.claim.turn, lease.claim.link
        records = {record.number: record for record in self._ledger.attempts(turn.turn_id)}
        best = records[turn.best or link.attempt]
        tried = [record for number, record in sorted(records.items()) if number <= best.number]
        delivered, lost = folders.kept(self._settings, turn, tried)
        try:
            repaired = self._judges.repair(
                self._case(turn, best.answer, delivered.files, judged(list(records.values())))
            )
        except CannotJudge as error:
            return cannot_judge(link, str(error))
        repaired = replace(repaired, issues=(*repaired.issues, *lost, *refused(delivered.refused, turn.request.locale)))
        move = after_fallback(turn, link, best.number, repaired)
        return self._accept(lease, move, best, {**delivered.files, **repaired.files})

    def _verify(self, lease: Lease) -> Move:
        """Check a phase's output: its gates, each told as it ends, then an independent agent where it asks for one."""
        turn, link, claim = lease.claim.turn, lease.claim.link, lease.claim
        this = self._ledger.attempts(turn.turn_id)[-1]
        if this.number != link.attempt:
            raise ValueError(f"attempt {link.attempt} of {turn.turn_id} has no record")
        output = folders.delivery_folder(self._settings, turn, this) / phase_folders.OUTPUT
        verification = Verification(
            self._settings, turn, this, lease, lambda events: self._ledger.append(claim, events), output
        )
        result = verification.run()
        reach("validation.started")
        move = after_verification(turn, link, this, result, lease.reason)
        if move.state is TurnState.PARKED:
            self._put_feedback_away(turn)
        return self._accept(lease, move, this)

    def _resume(self, lease: Lease) -> Move:
        """Carry out what was decided on a parked turn."""
        turn, link = lease.claim.turn, lease.claim.link
        records = {record.number: record for record in self._ledger.attempts(turn.turn_id)}
        best = records.get(turn.best or link.attempt)
        move = after_decision(turn, link.attempt, best)
        if best is None:
            return move
        if turn.request.phase is not None:
            return self._accept(lease, move, best)
        delivered, _ = folders.kept(
            self._settings, turn, [r for _, r in sorted(records.items()) if r.number <= best.number]
        )
        return self._accept(lease, move, best, delivered.files)

    def _fail(self, lease: Lease) -> Move:
        """End the turn honestly, with what its user can do."""
        turn, link = lease.claim.turn, lease.claim.link
        records = {record.number: record for record in self._ledger.attempts(turn.turn_id)}
        shown = records.get(turn.best or link.attempt)
        issues = (shown.remaining or shown.issues) if shown else ()
        failing = turn.failing or {"outcome": "failed", "code": "failed", "reason": ""}
        if turn.request.phase is not None:
            self._put_feedback_away(turn)
        return after_giving_up(turn, link, failing, issues)

    def _put_feedback_away(self, turn: Turn) -> None:
        """Keep a phase's last feedback. Where its folder has vanished there is none, and the turn ends all the same."""
        try:
            phase_folders.put_feedback_away(folders.folder_of(self._settings, turn), turn)
        except (SettingsError, PhaseError) as error:
            log.warning("feedback.not_archived", reason=str(error)[:200])

    def _accept(self, lease: Lease, move: Move, record: AttemptRecord, files: Mapping[str, str] | None = None) -> Move:
        """A success is published before the commit that tells of it; other moves just go on. Raises ``Fenced``."""
        turn = lease.claim.turn
        other: dict[str, str] = {}
        if files and move.outcome and move.outcome.success:
            written = folders.delivered(self._settings, turn, record).files
            other = {name: text for name, text in files.items() if written.get(name) != text}
        accepted = Accepted(move=move, delivery=folders.delivery_of(turn, record), mended=other)
        return self._publisher.publish(lease, accepted)

    def _case(
        self, turn: Turn, text: str, files: Mapping[str, str], history: Sequence[Attempt], *, fresh: bool = False
    ) -> Case:
        request = turn.request
        return Case(
            text=text,
            history=tuple(history),
            names=request.validators,
            root=self._settings.root,
            context={"files": files, "locale": request.locale, "session_id": request.session_id},
            policy=policy_of(turn),
            fresh=fresh,
        )
