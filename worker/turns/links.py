"""The work of each link of a turn's chain: from a claimed turn to its next move.

Agents run as coroutines of the process's event loop, or in threads if their runner blocks. Methods that touch files,
judge answers or wait for programs are not coroutines: they run in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from api_client.contract import tasks
from api_client.contract.events import Body
from api_client.contract.failpoints import arrive, reach
from api_client.contract.issues import BudgetExceeded, SettingsError, ValidationIssue
from api_client.contract.phases import PhaseError
from api_client.contract.record import AttemptRecord
from api_client.contract.settings.table import secrets_of
from api_client.contract.tasks import Link
from api_client.contract.turn import Failing, Turn, TurnState
from api_client.snapshots import FilesUnavailable
from api_client.turns.record.changes import Claim, JudgingPaused
from api_client.turns.record.encoding import Accepted, Move, asked_anew, judged, policy_of
from worker.enforcement.attempt import Attempt
from worker.enforcement.claims.journal import Journal, journal_of
from worker.enforcement.faults import fault_words
from worker.enforcement.policy import decide, demote, refused
from worker.enforcement.rules.claims import JOURNAL
from worker.enforcement.validators.codes import JudgingCost
from worker.files.snapshots import SessionTooLarge
from worker.files.workspace import written_files
from worker.turns import folders, phase_turns, run_journal
from worker.turns.agent_run import AgentRun
from worker.turns.folders import AnswerFiles, accept_with_files
from worker.turns.judges import CannotJudge, Case
from worker.turns.leases.lease import Lease
from worker.turns.parts import EngineParts
from worker.turns.phase_turns import Verification
from worker.turns.transitions.after_judging import (
    JudgedRun,
    Usage,
    after_decision,
    after_fallback,
    after_giving_up,
    after_validation,
    cannot_judge,
    with_judging,
    with_shadow,
)
from worker.turns.transitions.after_run import Delays, after_run, after_verification, not_affordable, not_reached

# Judging an attempt's answer: the work of ``turn.validate``, and of a run whose answer can be judged at once.
#
# An answer of ordinary length is judged in the event loop when all active validators are our own (``Case.bounded``),
# in threads and children else. Where the loop can do it, a run and the verdict on its answer are one move: judging
# takes less time than storing the run by itself would.

log = structlog.get_logger()

#: How long an answer waits for its rules in shadow at most. Each of them has its own time besides.
SHADOW_SECONDS = 120.0


async def validate(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
    """Judge the attempt's answer with the active validators, and decide. In the loop, where that takes no time.

    Raises:
        Fenced: another worker has the turn.
    """
    turn, link = lease.claim.turn, lease.claim.link
    *before, this = attempts
    if this.number != link.attempt:
        raise ValueError(f"attempt {link.attempt} of {turn.turn_id} has no record")
    found = await _collected(parts, turn, attempts)
    try:
        case = case_of(parts, turn, this.text, found.files, before, journal_of(attempts))
        quick = case.bounded
        attempt = parts.judges.judge(case) if quick else await parts.threads.checks(parts.judges.judge, case)
        shadow, more = await _in_shadow(parts, turn, case, attempt, lease.deadline - time.monotonic())
    except CannotJudge as error:
        return cannot_judge(link, str(error))
    attempt = _with_files(attempt, found, turn)
    await arrive("validation.started")

    def decided() -> Move:
        move = _decided(turn, link, case, attempt, this)
        return with_shadow(turn, with_judging(turn, move, attempt.spent + more), shadow)

    move = decided() if quick else await parts.threads.checks(decided)
    if move.outcome is None or not move.outcome.success:
        return move
    accepted = Accepted(move=move, delivery=folders.delivery_of(turn, this), mended=found.not_own)
    return await folders.publish(parts, lease, accepted, found.files)


async def at_once(parts: EngineParts, lease: Lease, run: Move, attempts: Sequence[AttemptRecord]) -> JudgedRun | None:
    """Judge the answer of a run that has just ended, and is not stored yet; None: it is to be stored first.

    ``attempts`` are those before, and what is known of this one. An accepted answer is published, and then nothing
    is recorded any more of the runs that this holder has to forget.

    Raises:
        Fenced: another worker has the turn.
    """
    turn = lease.claim.turn
    applied = turn.request.applied
    if applied and applied.shadow:
        return None
    await parts.policies.load(turn)
    began = time.monotonic()
    this = AttemptRecord(number=run.attempt, **run.facts.values)
    before = [record for record in attempts if record.number < run.attempt]
    try:
        case = case_of(parts, turn, this.text, {}, before, journal_of([*before, this]))
        if not case.bounded:
            return None
        found = await _collected(parts, turn, [*before, this])
        if found.files:
            case = replace(case, context={**case.context, "files": found.files})
            if not case.bounded:
                return None
        attempt = _with_files(parts.judges.judge(case), found, turn)
    except (CannotJudge, OSError):
        return None
    await arrive("validation.started")
    verdict = _decided(turn, Link(tasks.VALIDATE, run.attempt), case, attempt, this)
    both = JudgedRun.of(run, verdict, judged_ms=int((time.monotonic() - began) * 1000))
    if verdict.outcome is None or not verdict.outcome.success:
        return both
    accepted = Accepted(move=both.move, delivery=folders.delivery_of(turn, this), mended=found.not_own)
    ended = folders.unforgotten(parts.settings, lease.claim, parts.runners, went_on=lease.went_on)
    try:
        await folders.publish(parts, lease, accepted, found.files, ended)
    except (JudgingPaused, SettingsError, SessionTooLarge, FilesUnavailable):
        return None  # stored by itself, it is found again what is wrong
    except OSError as error:
        if not await parts.threads.files(parts.host.look):
            raise
        log.warning("answer.not_published", error=str(error)[:200])  # another machine judges and publishes it
        return None
    return both


async def _collected(parts: EngineParts, turn: Turn, attempts: Sequence[AttemptRecord]) -> AnswerFiles:
    """The files that belong to the answer of the last of these attempts. Raises as ``folders.kept``."""
    if not folders.works_in_files(parts.settings, turn, parts.runners):
        return AnswerFiles()
    return await parts.threads.files(folders.kept, parts.settings, turn, attempts)


async def _in_shadow(
    parts: EngineParts, turn: Turn, case: Case, attempt: Attempt, seconds_left: float
) -> tuple[tuple[ValidationIssue, ...], JudgingCost]:
    """Judge the answer by the rules in shadow. Nothing that happens to them concerns the turn, but what they cost.

    They may take ``SHADOW_SECONDS`` together, and never more than half of the turn's remaining time.
    """
    applied = turn.request.applied
    if applied is None or not applied.shadow:
        return (), JudgingCost()
    policy = replace(case.policy, order={}, caps={})
    other = replace(case, text=attempt.answer, history=(), names=applied.shadow, policy=policy, fresh=False)
    try:
        if other.bounded:
            found = parts.judges.judge(other)
        else:
            async with asyncio.timeout(min(SHADOW_SECONDS, seconds_left / 2)):
                found = await parts.threads.checks(parts.judges.judge, other)
    except Exception as error:  # whatever a rule does, the turn goes on
        log.warning("shadow.failed", rules=applied.shadow, error=f"{type(error).__name__}: {error}"[:200])
        return (), JudgingCost()
    return demote(found.issues, policy), found.spent


def case_of(
    parts: EngineParts,
    turn: Turn,
    text: str,
    files: Mapping[str, str],
    before: Sequence[AttemptRecord],
    journal: Journal | None = None,
) -> Case:
    """Return what the judges are asked about an answer; ``before`` are the turn's attempts before it.

    ``journal`` is that of all runs the answer may speak of.

    Raises:
        CannotJudge: the turn's policy file is not there, or cannot be used.
    """
    request = turn.request
    try:
        file = parts.policies.known(turn)
    except ValueError as error:
        raise CannotJudge(str(error)) from None
    return Case(
        text=text,
        history=tuple(judged(before)),
        names=request.validators,
        root=parts.settings.root,
        context={
            "files": files,
            "locale": request.locale,
            "session_id": request.session_id,
            "prompt": request.prompt,
            JOURNAL: journal,
        },
        policy=policy_of(turn),
        file=file,
        fresh=asked_anew(before),
        feedback=before[-1].feedback if before and not asked_anew(before) else "",
    )


def _with_files(attempt: Attempt, found: AnswerFiles, turn: Turn) -> Attempt:
    if not found.lost and not found.refused:
        return attempt
    return replace(attempt, issues=(*attempt.issues, *found.lost, *refused(found.refused, turn.request.locale)))


def _decided(turn: Turn, link: Link, case: Case, attempt: Attempt, record: AttemptRecord) -> Move:
    try:
        decision = decide([*case.history, attempt], case.policy)
        return after_validation(turn, link, attempt, case.policy, decision, Usage.of(record.usage))
    except Exception as error:  # pure code: to be delivered again would bring the same
        log.exception("judging.failed", link=str(link))
        return cannot_judge(link, fault_words(error), "internal_error")


async def work(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
    """Carry out the claimed link; ``attempts`` are the turn's so far.

    Raises:
        Fenced: another worker has the turn. SettingsError, PhaseError: the set-up is wrong.
    """
    turn, task, threads = lease.claim.turn, lease.claim.link.task, parts.threads
    if task in {tasks.VALIDATE, tasks.FALLBACK, tasks.PHASE_VERIFY, *tasks.JUDGED_BY}:
        await parts.policies.load(turn)
    if task in {tasks.RUN, tasks.RETRY}:
        await parts.policies.load_template(turn)
    if task in tasks.JUDGED_BY:
        return await _run(parts, lease, attempts)
    if task == tasks.VALIDATE:
        return await validate(parts, lease, attempts)
    if task == tasks.PHASE_VERIFY:
        return await threads.runs(_verify, parts, lease, attempts)
    return await threads.checks(_IN_CHECKS[task], parts, lease, attempts)


async def settle(parts: EngineParts, lease: Lease, following: Claim | None, *, published: bool) -> None:
    """Remove the recordings of runs after the link is committed: no worker has to adopt them any more.

    ``following`` is the next link's claim, where that is carried out in place. Before it runs an agent again,
    ``AgentRun`` removes the recording of the attempt before. ``published``: they were removed when the answer was
    published.
    """
    claim = lease.claim
    ended = folders.unforgotten(parts.settings, claim, parts.runners, went_on=lease.went_on)
    alone = len(ended) == 1 and following is not None and following.link.task in tasks.JUDGED_BY
    if ended and not alone and not published:
        await parts.threads.files(folders.forget_runs, parts.settings, claim.turn, ended)


async def _run(parts: EngineParts, lease: Lease, records: list[AttemptRecord]) -> Move:
    """Run the agent once: for the user's message, or for the feedback on the attempt before."""
    turn, link = lease.claim.turn, lease.claim.link
    history = [record for record in records if record.number < link.attempt]
    this = records[-1] if records and records[-1].number == link.attempt else None
    if turn.request.after and link.attempt == 1 and (stopped := await _stopped_before(parts, turn)):
        return not_reached(turn, link, turn.request.after, stopped)
    asked_after = this.text if this and turn.asked else None
    run = AgentRun(parts, lease, history, this.text if this and this.goes_on else "", asked_after)
    try:
        result = await run.run()
    except BudgetExceeded as error:
        return not_affordable(turn, link, error, run.unsent)
    before = this if this and (this.goes_on or turn.asked) else None
    return after_run(
        turn,
        link,
        result,
        unsent=run.unsent,
        prompt=run.prompt,
        sent=result.sent.to_dict(parts.redact) if result.sent else None,
        journal=await run_journal.collected(parts, turn, link.attempt, result, before),
        question=result.call.question(result.adopted or turn.delivery, secrets_of(parts.settings))
        if result.call
        else None,
        permit=run.permit,
        history=history,
        stop=lease.reason,
        transient_retries=parts.settings.transient_retries,
        fallbacks=parts.settings.of_model(turn.request.model).fallbacks,
        strikes=parts.settings.strikes,
        delays=Delays(
            first=parts.settings.transient_delay_seconds,
            left=lease.deadline - time.monotonic(),
        ),
    )


async def _stopped_before(parts: EngineParts, turn: Turn) -> str:
    """The outcome of the turn that had to pass before this one; empty when it passed."""
    before = await parts.ledger.turn(turn.request.after)
    if before is None or before.outcome is None:
        return "unknown"
    return "" if before.outcome.success else before.outcome.value


def _fallback(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
    """Repair the best answer as far as the active validators can, and judge it again."""
    turn, link = lease.claim.turn, lease.claim.link
    records = {record.number: record for record in attempts}
    best = records[turn.best or link.attempt]
    tried = [record for number, record in sorted(records.items()) if number <= best.number]
    found = folders.kept(parts.settings, turn, tried)
    try:
        case = case_of(parts, turn, best.answer, found.files, list(records.values()), journal_of(tried))
        repaired = parts.judges.repair(case)
    except CannotJudge as error:
        return cannot_judge(link, str(error))
    wrong = (*found.lost, *refused(found.refused, turn.request.locale))
    repaired = replace(repaired, issues=(*repaired.issues, *wrong))
    move = with_judging(turn, after_fallback(turn, link, best.number, repaired), repaired.spent)
    return accept_with_files(parts, lease, move, best, {**found.files, **repaired.files})


def _verify(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
    """Check a phase's output: its gates, each reported as it ends, then a verifier if it asks for one."""
    turn, link, claim = lease.claim.turn, lease.claim.link, lease.claim
    this = attempts[-1]
    if this.number != link.attempt:
        raise ValueError(f"attempt {link.attempt} of {turn.turn_id} has no record")
    output = folders.delivery_folder(parts.settings, turn, this) / phase_turns.OUTPUT
    last = link.attempt >= turn.max_attempts

    spent = JudgingCost()

    def judge() -> tuple[ValidationIssue, ...]:
        nonlocal spent
        case = case_of(parts, turn, this.text, written_files(output.parent), ())
        attempt = parts.judges.judge(case)
        spent += attempt.spent
        return demote(attempt.issues, case.policy, final=last)

    def append(events: list[Body]) -> None:
        parts.threads.asked(parts.ledger.append(claim, events))

    verification = Verification(parts.settings, turn, this, lease, append, output, judge)
    try:
        result = verification.run()
    except CannotJudge as error:
        return cannot_judge(link, str(error))
    reach("validation.started")
    move = after_verification(turn, link, this, result, lease.reason)
    move = with_judging(turn, move, spent + Usage.of(result.usage).as_judging)
    if move.state is TurnState.PARKED:
        _put_feedback_away(parts, turn)
    return accept_with_files(parts, lease, move, this)


def _resume(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
    """Carry out a person's decision on a parked turn."""
    turn, link = lease.claim.turn, lease.claim.link
    records = {record.number: record for record in attempts}
    best = records.get(turn.best or link.attempt)
    move = after_decision(turn, link.attempt, best)
    if best is None:
        return move
    if turn.request.phase is not None:
        return accept_with_files(parts, lease, move, best)
    tried = [record for number, record in sorted(records.items()) if number <= best.number]
    return accept_with_files(parts, lease, move, best, folders.kept(parts.settings, turn, tried).files)


def _fail(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Move:
    """End the turn as failed, and tell its user what to do."""
    turn, link = lease.claim.turn, lease.claim.link
    records = {record.number: record for record in attempts}
    shown = records.get(turn.best or link.attempt)
    issues = (shown.remaining or shown.issues) if shown else ()
    if turn.request.phase is not None:
        _put_feedback_away(parts, turn)
    return after_giving_up(turn, link, turn.failing or Failing(), issues)


def _put_feedback_away(parts: EngineParts, turn: Turn) -> None:
    """Keep a phase's last feedback. If its folder has vanished, there is none to keep, and the turn still ends."""
    try:
        phase_turns.put_feedback_away(folders.folder_of(parts.settings, turn), turn)
    except (SettingsError, PhaseError) as error:
        log.warning("feedback.not_archived", reason=str(error)[:200])


#: The work of the links that may be judging in a child, or that write files.
_IN_CHECKS = {tasks.FALLBACK: _fallback, tasks.FAIL: _fail, tasks.RESUME: _resume}
