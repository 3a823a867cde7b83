"""The work of each kind of task, from a claimed turn to the turn's next transition."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from api_client.contract import tasks
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import NotAdmitted
from api_client.contract.turn import PendingFailure
from api_client.contract.work import find_work
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.transition import Transition
from worker.enforcement.answer_validation import refused_file_issues
from worker.turns import folders
from worker.turns.agent_run import AgentRun
from worker.turns.engine_parts import EngineParts
from worker.turns.leases.lease import Lease
from worker.turns.publisher import accept_with_files
from worker.turns.run_evidence import collect_evidence
from worker.turns.transitions.after_run import after_run, end_refused_run
from worker.turns.transitions.after_validation import after_fallback, after_giving_up, fail_unvalidated
from worker.turns.transitions.backoff import Delays
from worker.turns.transitions.interruptions import resume_turn
from worker.turns.transitions.usage import charge_validation
from worker.turns.validation import build_case, validate_answer
from worker.turns.validation_pool import ValidatorsUnavailable
from worker.turns.work import find_turn_work

log = structlog.get_logger()


async def carry_out_task(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
    """Carry out the claimed task of a turn and return the resulting transition.

    Raises ``LeaseLost``, or ``SettingsError`` if this worker is not configured for the task.
    """
    turn, task, threads = lease.claim.turn, lease.claim.chain_task.task, parts.threads
    if task not in tasks.TASKS and not tasks.runs_agent(task):
        return await find_turn_work(turn).carry_out(parts, lease, attempts)
    if task in {tasks.VALIDATE, tasks.FALLBACK} or tasks.runs_agent(task):
        await parts.policies.load_policy(turn)
    if task in {tasks.RUN, tasks.RETRY}:
        await parts.policies.load_template(turn)
    if tasks.runs_agent(task):
        return await _run_attempt(parts, lease, attempts)
    if task == tasks.VALIDATE:
        return await validate_answer(parts, lease, attempts)
    return await threads.do_check(_IN_CHECKS[task], parts, lease, attempts)


async def forget_recordings(parts: EngineParts, lease: Lease, following: LeaseClaim | None, *, published: bool) -> None:
    """Delete the recorded runs that no worker needs after the task's transition was stored.

    ``following`` is the claim of the next task if that task runs in place. ``published``: the publication removed them.
    """
    if published:
        return
    claim = lease.claim
    ended = folders.find_recorded_attempts(parts.settings, claim, parts.runners, continued=lease.continued)
    alone = len(ended) == 1 and following is not None and tasks.runs_agent(following.chain_task.task)
    if ended and not alone:
        await parts.threads.do_file_work(folders.forget_runs, parts.settings, claim.turn, ended)


async def _run_attempt(parts: EngineParts, lease: Lease, records: list[AttemptRecord]) -> Transition:
    turn, chain_task = lease.claim.turn, lease.claim.chain_task
    history = [record for record in records if record.number < chain_task.attempt]
    this = records[-1] if records and records[-1].number == chain_task.attempt else None
    if chain_task.attempt == 1 and (ended := await find_turn_work(turn).start(parts, lease)):
        return ended
    before_answer = this.text if this and turn.interruption else None
    run = AgentRun(parts, lease, history, this.text if this and this.goes_on else "", before_answer)
    try:
        result = await run.run_agent()
    except NotAdmitted as error:
        return end_refused_run(turn, chain_task, error, run.unsent)
    earlier = this if this and (this.goes_on or turn.interruption) else None
    return after_run(
        turn,
        chain_task,
        result,
        unsent=run.unsent,
        prompt=run.prompt,
        sent=result.sent.to_dict(parts.redact) if result.sent else None,
        evidence=await collect_evidence(parts, turn, chain_task.attempt, result, earlier),
        answer_used=run.answer_used,
        history=history,
        stop=lease.reason,
        transient_retries=parts.settings.transient_retries,
        fallbacks=parts.settings.for_model(turn.request.model).fallbacks,
        strikes=parts.settings.strikes,
        delays=Delays(first=parts.settings.transient_delay_seconds, left=lease.deadline - time.monotonic()),
    )


def _repair_answer(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
    turn, chain_task = lease.claim.turn, lease.claim.chain_task
    records = {record.number: record for record in attempts}
    best = records[turn.best or chain_task.attempt]
    tried = [record for number, record in sorted(records.items()) if number <= best.number]
    found = folders.collect_answer_files(parts.settings, turn, tried)
    try:
        case = build_case(parts, turn, best.answer, found.files, list(records.values()), tried)
        repaired = parts.validation_pool.repair(case)
    except ValidatorsUnavailable as error:
        return fail_unvalidated(chain_task, str(error))
    wrong = (*found.lost, *refused_file_issues(found.refused, turn.request.locale))
    repaired = replace(repaired, issues=(*repaired.issues, *wrong))
    transition = charge_validation(turn, after_fallback(turn, chain_task, best.number, repaired), repaired.spent)
    return accept_with_files(parts, lease, transition, best, {**found.files, **repaired.files})


def _carry_out_decision(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
    turn, chain_task = lease.claim.turn, lease.claim.chain_task
    records = {record.number: record for record in attempts}
    best = records.get(turn.best or chain_task.attempt)
    transition = resume_turn(turn, chain_task.attempt, best)
    if best is None:
        return transition
    if not find_work(turn.request).in_session:
        return accept_with_files(parts, lease, transition, best)
    tried = [record for number, record in sorted(records.items()) if number <= best.number]
    return accept_with_files(
        parts, lease, transition, best, folders.collect_answer_files(parts.settings, turn, tried).files
    )


def _fail_turn(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
    turn, chain_task = lease.claim.turn, lease.claim.chain_task
    records = {record.number: record for record in attempts}
    shown = records.get(turn.best or chain_task.attempt)
    issues = (shown.remaining or shown.issues) if shown else ()
    find_turn_work(turn).give_up(parts.settings, turn)
    return after_giving_up(turn, chain_task, turn.failing or PendingFailure(), issues)


_IN_CHECKS = {tasks.FALLBACK: _repair_answer, tasks.FAIL: _fail_turn, tasks.RESUME: _carry_out_decision}
