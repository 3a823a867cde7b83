"""Validates an attempt's answer, in the task ``turn.validate`` or directly after the run.

Short answers are validated in the event loop if all validators are our own, together with the run's transition;
otherwise in threads and children.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from api_client.contract import tasks
from api_client.contract.answer_format import RESPONSE_FORMAT, AnswerFormat
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import pass_failpoint_async
from api_client.contract.session_files import SessionFilesError
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import Turn
from api_client.contract.usage import Usage
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.claim import ValidationHeldBack
from api_client.turns.record.transition import Transition, is_fresh_attempt, to_policy_attempts
from api_client.turns.record.turn_policy import find_turn_policy
from worker.enforcement.answer_validation import refused_file_issues
from worker.enforcement.attempt import Attempt
from worker.enforcement.policy import Fail, decide_next
from worker.enforcement.rules import EVIDENCE
from worker.enforcement.validation_faults import describe_fault
from worker.turns import folders, publisher
from worker.turns.engine_parts import EngineParts
from worker.turns.folders import AnswerFiles
from worker.turns.leases.lease import Lease
from worker.turns.shadow_rules import check_shadow_rules, list_shadow_rules
from worker.turns.transitions.after_validation import after_validation, fail_unvalidated
from worker.turns.transitions.usage import charge_validation
from worker.turns.transitions.validated_run import ValidatedRun
from worker.turns.validation_pool import ValidationCase, ValidatorsUnavailable

log = structlog.get_logger()


async def validate_answer(parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
    """Validate the answer of an attempt, and return the transition that the policy chooses."""
    turn, chain_task = lease.claim.turn, lease.claim.chain_task
    *before, this = attempts
    if this.number != chain_task.attempt:
        raise ValueError(f"attempt {chain_task.attempt} of {turn.turn_id} has no record")
    found = await _collect_files(parts, turn, attempts)
    try:
        case = build_case(parts, turn, this.text, found.files, before, attempts)
        quick = case.bounded
        attempt = (
            parts.validation_pool.validate_answer(case)
            if quick
            else await parts.threads.do_check(parts.validation_pool.validate_answer, case)
        )
        left = lease.deadline - time.monotonic()
        shadow = await check_shadow_rules(parts, turn, case, attempt, left) if list_shadow_rules(turn) else None
    except ValidatorsUnavailable as error:
        return fail_unvalidated(chain_task, str(error))
    attempt = _add_file_issues(attempt, found, turn)
    await pass_failpoint_async("validation.started")

    def decide_transition() -> Transition:
        transition = _decide_transition(turn, chain_task, case, attempt, this)
        if shadow is None:
            return charge_validation(turn, transition, attempt.spent)
        return shadow.add_to_transition(charge_validation(turn, transition, attempt.spent + shadow.spent))

    transition = decide_transition() if quick else await parts.threads.do_check(decide_transition)
    if transition.outcome is None or not transition.outcome.success:
        return transition
    accepted = AcceptedAnswer(
        transition=transition, delivery=folders.last_delivery_name(turn, this), mended=found.not_own
    )
    return await publisher.publish_answer(parts, lease, accepted, found.files)


async def validate_at_once(
    parts: EngineParts, lease: Lease, run: Transition, attempts: Sequence[AttemptRecord]
) -> ValidatedRun | None:
    """Validate a run's answer before the run is stored. Return one transition for both, or None if that is impossible.

    An accepted answer is published. Raises ``LeaseLost``.
    """
    turn = lease.claim.turn
    if list_shadow_rules(turn):
        return None
    await parts.policies.load_policy(turn)
    began = time.monotonic()
    this = AttemptRecord(number=run.attempt, **run.facts.values)
    before = [record for record in attempts if record.number < run.attempt]
    try:
        case = build_case(parts, turn, this.text, {}, before, [*before, this])
        if not case.bounded:
            return None
        found = await _collect_files(parts, turn, [*before, this])
        if found.files:
            case = replace(case, context={**case.context, "files": found.files})
            if not case.bounded:
                return None
        attempt = _add_file_issues(parts.validation_pool.validate_answer(case), found, turn)
    except (ValidatorsUnavailable, OSError):
        return None
    await pass_failpoint_async("validation.started")
    verdict = _decide_transition(turn, ChainTask(tasks.VALIDATE, run.attempt), case, attempt, this)
    both = ValidatedRun.of(run, verdict, validation_ms=int((time.monotonic() - began) * 1000))
    if verdict.outcome is None or not verdict.outcome.success:
        return both
    accepted = AcceptedAnswer(
        transition=both.transition, delivery=folders.last_delivery_name(turn, this), mended=found.not_own
    )
    ended = folders.find_recorded_attempts(parts.settings, lease.claim, parts.runners, continued=lease.continued)
    try:
        await publisher.publish_answer(parts, lease, accepted, found.files, ended)
    except (ValidationHeldBack, SettingsError, SessionFilesError):
        return None  # the problem is found again once the run is stored
    except OSError as error:
        if not await parts.threads.do_file_work(parts.host.probe_now):
            raise
        # Another machine validates and publishes the answer.
        log.warning("answer.not_published", error=str(error)[:200])
        return None
    return both


async def _collect_files(parts: EngineParts, turn: Turn, attempts: Sequence[AttemptRecord]) -> AnswerFiles:
    if not folders.may_write_files(parts.settings, turn, parts.runners):
        return AnswerFiles()
    return await parts.threads.do_file_work(folders.collect_answer_files, parts.settings, turn, attempts)


def build_case(
    parts: EngineParts,
    turn: Turn,
    text: str,
    files: Mapping[str, str],
    before: Sequence[AttemptRecord],
    runs: Sequence[AttemptRecord] = (),
) -> ValidationCase:
    """Build the input for validating an answer. Raises ``ValidatorsUnavailable``.

    ``before`` are the turn's earlier attempts; ``runs`` those whose runs the answer may describe, oldest first.
    """
    request = turn.request
    try:
        file = parts.policies.find_policy(turn)
    except ValueError as error:
        raise ValidatorsUnavailable(str(error)) from None
    answer_format = AnswerFormat.from_request(request)
    return ValidationCase(
        text=text,
        history=tuple(to_policy_attempts(before)),
        names=(*request.validators, RESPONSE_FORMAT) if answer_format else request.validators,
        root=parts.settings.root,
        context={
            "files": files,
            "locale": request.locale,
            "session_id": request.session_id,
            "prompt": request.prompt,
            EVIDENCE: [record.evidence for record in runs],
        },
        policy=find_turn_policy(turn),
        file=answer_format.add_rule(file) if answer_format else file,
        fresh=is_fresh_attempt(before),
        feedback=before[-1].feedback if before and not is_fresh_attempt(before) else "",
    )


def _add_file_issues(attempt: Attempt, found: AnswerFiles, turn: Turn) -> Attempt:
    if not found.lost and not found.refused:
        return attempt
    return replace(
        attempt, issues=(*attempt.issues, *found.lost, *refused_file_issues(found.refused, turn.request.locale))
    )


def _decide_transition(
    turn: Turn, chain_task: ChainTask, case: ValidationCase, attempt: Attempt, record: AttemptRecord
) -> Transition:
    try:
        decision = decide_next([*case.history, attempt], case.policy)
        fault = decision.fault if isinstance(decision, Fail) else ""
        transition = after_validation(turn, chain_task, attempt, case.policy, decision, Usage.from_report(record.usage))
    except Exception as error:
        fault = describe_fault(error)
    if not fault:
        return transition
    log.error("judging.failed", turn_id=turn.turn_id, chain_task=str(chain_task), error=fault)
    return fail_unvalidated(chain_task, fault, "internal_error")
