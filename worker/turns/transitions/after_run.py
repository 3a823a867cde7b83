"""Pure transitions after an agent run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from api_client.contract.attempt_record import AttemptFacts, AttemptRecord
from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, ProviderFault, Verdict
from api_client.contract.counters import COUNTERS, count_duration, counter_field, model_label
from api_client.contract.error_codes import error_words
from api_client.contract.errors import NotAdmitted
from api_client.contract.event_kinds import AttemptCompleted, AttemptLost
from api_client.contract.events import Body
from api_client.contract.issue import ValidationIssue
from api_client.contract.messages import GIVEN_UP
from api_client.contract.record import FieldChanges
from api_client.contract.tasks import FAIL, ChainTask, all_tasks
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.contract.usage import Usage
from api_client.contract.work import find_work
from api_client.turns.record.transition import (
    Answer,
    Transition,
    attempt_facts,
    policy_retry_event,
    progress,
    rerun_task,
    retry_event,
    to_policy_attempts,
)
from api_client.turns.record.turn_policy import find_turn_policy
from worker.enforcement.answer_continuation import LEAST, trim_partial_marks
from worker.enforcement.attempt import Attempt
from worker.enforcement.policy import Fail, Retry, decide_next
from worker.runners.base import RunResult
from worker.turns.interruptions.kind import FailedTurn
from worker.turns.transitions.after_validation import fail_unvalidated
from worker.turns.transitions.backoff import MOST_HAND_OVERS, Delays, delay_after, hand_over_delay
from worker.turns.transitions.interruptions import rescue_turn, settle_question, suspend_turn

Facts = FieldChanges[AttemptFacts]
_NO_FACTS: Facts = attempt_facts()

#: Errors that usually disappear on a retry.
_PASSING = frozenset({ErrorKind.TRANSIENT, ErrorKind.SESSION_LOST})
#: Errors that prove the service itself works.
_ANSWERS = frozenset({ErrorKind.PERMANENT, ErrorKind.LIMIT})
#: Longest reason shown for waiting turns, in characters.
_QUOTED = 200
_LONGEST_WAIT = 86_400.0
#: Outcomes of turns whose run was stopped on purpose.
CALLED_OFF = {"cancelled": Outcome.CANCELLED, "expired": Outcome.EXPIRED}


@dataclass(frozen=True, slots=True)
class _FinishedRun:
    """A finished agent run with its turn, from which the possible transitions are built."""

    turn: Turn
    chain_task: ChainTask
    result: RunResult
    facts: Facts
    event: AttemptCompleted

    def build_transition(self, facts: Facts | None = None, *more: Body, **changes: Any) -> Transition:
        return Transition(
            attempt=self.chain_task.attempt,
            facts=self.facts if facts is None else facts,
            events=[self.event, *more],
            run_ended=True,
            **changes,
        )

    def fail_turn(self, failing: PendingFailure, decision: Facts = _NO_FACTS) -> Transition:
        next_link = ChainTask(FAIL, self.chain_task.attempt)
        return self.build_transition(self.facts | decision, next=next_link, fields=progress(failing=failing))

    def fail_with_error(self, reason: str, code: str = "") -> Transition:
        completion = self.result.completion
        if completion.out_of_credit:
            code = "no_credit"
        elif not code:  # an oversized request is the caller's to shorten, whatever kind of error the service reports
            kind = ErrorKind.LIMIT if completion.fault is ProviderFault.CONTEXT_LENGTH else completion.kind
            code = kind.value if kind else "error"
        return self.fail_turn(PendingFailure(outcome=Outcome.ERROR, code=code, reason=reason))


def after_run(
    turn: Turn,
    chain_task: ChainTask,
    result: RunResult,
    *,
    prompt: str,
    sent: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Any] | None = None,
    history: Sequence[AttemptRecord] = (),
    stop: str = "",
    unsent: Sequence[Body] = (),
    transient_retries: int,
    delays: Delays,
    fallbacks: Mapping[str, Sequence[str]] = MappingProxyType({}),
    strikes: int = 5,
    answer_used: str = "",
) -> Transition:
    """Return the transition after a finished agent run: validate the answer, ask a person, retry or fail.

    ``sent`` is the agent's full input (``SentInput.to_dict``), ``evidence`` what rules collected, ``stop`` why the run
    was stopped, ``unsent`` its events not yet logged, ``strikes`` the most killed runs, ``answer_used`` the nonce of a
    used-up answer, and ``fallbacks`` the models that take over, by fault.
    """
    completion, usage = result.completion, Usage.from_report(result.usage)
    event = AttemptCompleted(
        attempt=chain_task.attempt,
        verdict=completion.verdict.value,
        reason=completion.reason,
        usage=usage.to_event_data(),
    )
    ended = _FinishedRun(turn, chain_task, result, _attempt_facts(turn, result, prompt, sent, evidence), event)
    if completion.verdict is Verdict.COMPLETE:
        judged_by = all_tasks()[chain_task.task].checked_by
        transition = ended.build_transition(
            next=ChainTask(judged_by, chain_task.attempt), fields=progress(agent_session=result.agent_session)
        )
    elif completion.verdict is Verdict.ASKS and result.interruption and not stop:
        asked = replace(result.interruption, delivery=result.adopted or turn.delivery)
        transition = suspend_turn(
            turn, ended.build_transition(fields=progress(agent_session=result.agent_session, transients=0)), asked
        )
    elif stop in CALLED_OFF and completion.verdict is not Verdict.ERROR:
        transition = ended.build_transition(
            outcome=CALLED_OFF[stop], answer=explain_stopped_turn(turn, CALLED_OFF[stop])
        )
    elif stop or completion.verdict is Verdict.CANCELLED or completion.killed_from_outside:
        transition = _redeliver_stopped_run(ended, stop, usage, strikes)
    elif completion.kind is ErrorKind.HOST:
        transition = _hand_over(turn, chain_task, "host", usage)
    elif model := _next_model(turn, completion, fallbacks, transient_retries):
        transition = _try_next_model(ended, model)
    elif completion.kind in _PASSING and (completion.busy or turn.transients < transient_retries):
        transition = _retry_later(ended, delays)
    elif completion.verdict is Verdict.ERROR:
        transition = ended.fail_with_error(completion.reason)
    else:
        transition = _handle_incomplete(ended, history)
    report = {} if stop else _service_report(completion)
    return _charge_run(turn, transition, result, usage, answer_used, unsent, **report)


def _charge_run(
    turn: Turn,
    transition: Transition,
    result: RunResult,
    usage: Usage,
    answer_used: str,
    unsent: Sequence[Body],
    **report: Any,
) -> Transition:
    """Return the transition with the run's usage, counters, ``unsent`` events and ``report`` about the service."""
    completion = result.completion
    tokens, cost = turn.tokens_used, turn.cost_used
    if result.adopted:
        tokens, cost = _usage_before_run(turn, result.adopted)
    used = progress(tokens_used=tokens + usage.tokens, cost_used=cost + usage.microdollars)
    if transition.run_ended:  # a finished run ends the count of hand-overs
        used |= progress(handed_over=0, avoid="")
        transition = settle_question(
            turn, transition, answer_used, answer_complete=completion.verdict is Verdict.COMPLETE
        )
    counters = transition.counters | _run_counters(turn, transition, completion, usage)
    events = [*unsent, *transition.events]
    return replace(transition, fields=transition.fields | used, counters=counters, events=events, **report)


def _attempt_facts(
    turn: Turn, result: RunResult, prompt: str, sent: Mapping[str, Any] | None, evidence: Mapping[str, Any] | None
) -> Facts:
    completion = result.completion
    if turn.fell and (before := {model: fell for model, fell in turn.fell.items() if fell["attempt"] == turn.attempt}):
        completion = replace(completion, evidence={**completion.evidence, "fallback_from": before})
    facts = attempt_facts(
        prompt=prompt,
        text=result.text,
        completion=completion.to_dict(),
        usage=dict(result.usage),
        last_delivery=result.adopted or turn.delivery,
        goes_on=False,
    )
    facts |= attempt_facts(sent=dict(sent)) if sent else _NO_FACTS
    return facts | (attempt_facts(evidence=dict(evidence)) if evidence else _NO_FACTS)


def _next_model(
    turn: Turn, completion: Completion, fallbacks: Mapping[str, Sequence[str]], transient_retries: int
) -> str:
    if completion.verdict is not Verdict.ERROR or completion.fault is None or turn.stage or turn.interruption:
        return ""
    if completion.kind in _PASSING and not completion.busy and turn.transients < transient_retries:
        return ""
    tried = {turn.request.model, turn.stage_model, *turn.fell}
    return next((model for model in fallbacks.get(completion.fault.value, ()) if model not in tried), "")


def _try_next_model(ended: _FinishedRun, model: str) -> Transition:
    turn, chain_task, completion = ended.turn, ended.chain_task, ended.result.completion
    fault = completion.fault.value if completion.fault else ""
    fell = {"attempt": chain_task.attempt, "fault": fault, "reason": completion.reason[:_QUOTED], "next": model}
    fallen = {**turn.fell, turn.stage_model or turn.request.model: fell}
    return ended.build_transition(
        None,
        replace(retry_event(turn, chain_task.attempt, "model"), model=model),
        state=TurnState.QUEUED,
        next=chain_task,
        fields=progress(stage_model=model, agent_session="", transients=0, fell=fallen),
    )


def _service_report(completion: Completion) -> dict[str, Any]:
    said = classify_service(completion)
    if said not in {"failed", "limited", "spent"}:
        return {"service": said}
    wait = {"limited": completion.retry_after, "spent": _LONGEST_WAIT}.get(said, 0.0)
    wait_ms = int(min(wait, _LONGEST_WAIT) * 1000)
    return {"service": said, "service_reason": completion.reason[:_QUOTED], "service_wait_ms": wait_ms}


def classify_service(completion: Completion) -> str:
    """Return how a model's service responded to a run: answered, limited, spent (no credit) or failed; "" if unknown.

    Only errors that the request did not cause are failures: 5xx and lost connections.
    """
    if completion.out_of_credit:
        return "spent"
    if completion.verdict in {Verdict.COMPLETE, Verdict.REFUSED, Verdict.ASKS}:
        return "answered"
    if completion.kind is ErrorKind.TRANSIENT:
        return "limited" if completion.busy else "failed"
    return "answered" if completion.kind in _ANSWERS else ""


def _usage_before_run(turn: Turn, adopted: int) -> tuple[int, int]:
    """Return the tokens and cost of a turn without the estimates charged since the delivery number ``adopted``.

    When a worker dies, the reaper charges an estimate. It is void if another worker finds the run's result.
    """
    lost = min(turn.strikes, turn.delivery - adopted)
    tokens, cost = turn.request.reserve
    return max(0, turn.tokens_used - lost * tokens), max(0, turn.cost_used - lost * cost)


def _run_counters(turn: Turn, transition: Transition, completion: Completion, usage: Usage) -> dict[str, int]:
    """Return a run's metrics counters. A complete run counts as wasted only if its answer is rejected."""
    model = model_label(turn)
    counted = usage.count_usage(model)
    if completion.verdict not in {Verdict.COMPLETE, Verdict.ASKS} or not transition.run_ended:
        counted |= usage.count_waste(model)
    if transition.run_ended:
        again = completion.verdict is Verdict.ERROR and transition.state is TurnState.QUEUED
        counted[counter_field("attempt.ended", "transient" if again else completion.verdict.value, model)] = 1
    start, ms = completion.evidence.get("start"), completion.evidence.get("start_ms")
    if start in COUNTERS["time.start"].values and isinstance(ms, int):
        counted |= count_duration("time.start", ms, start)
    return counted


def _hand_over(turn: Turn, chain_task: ChainTask, reason: str, usage: Usage) -> Transition:
    lost = AttemptLost(
        attempt=chain_task.attempt, delivery=turn.delivery, during=reason or "stopped", usage=usage.to_event_data()
    )
    counters = {"delivery.handed_over": 1}
    return Transition(
        attempt=chain_task.attempt, state=TurnState.QUEUED, next=chain_task, events=[lost], counters=counters
    )


def _redeliver_stopped_run(ended: _FinishedRun, stop: str, usage: Usage, strikes: int) -> Transition:
    """Return the transition that repeats an attempt whose run was stopped for a reason outside the agent.

    After ``MOST_HAND_OVERS`` hand-overs, or ``strikes`` killed runs, the turn ends as an error.
    """
    turn, chain_task, completion = ended.turn, ended.chain_task, ended.result.completion
    if stop == "shutdown":
        return _hand_over(turn, chain_task, stop, usage)
    number = turn.handed_over + 1
    if number > (strikes - 1 if completion.killed_from_outside else MOST_HAND_OVERS):
        reason = f"the worker could not keep the agent running, {number} times in a row: {completion.reason}"
        return ended.fail_with_error(reason, code="not_kept")
    died = "guard died" if completion.evidence.get("stopped") == "guard died" else "stopped"
    transition = _hand_over(turn, chain_task, stop or ("killed" if completion.killed_from_outside else died), usage)
    transition = replace(transition, fields=progress(handed_over=number), delay_ms=int(1000 * hand_over_delay(number)))
    return (
        avoid_workers(turn, transition, f"@{turn.worker.partition('@')[2]}$")
        if completion.killed_from_outside
        else transition
    )


def avoid_workers(turn: Turn, transition: Transition, avoid: str) -> Transition:
    """Return the transition, extended by a pattern of the workers that must not run the turn again."""
    words = " ".join(dict.fromkeys([*turn.avoid.split(), avoid]))
    return replace(transition, fields=transition.fields | progress(avoid=words), delay_ms=max(transition.delay_ms, 1))


def give_back_task(turn: Turn, chain_task: ChainTask, reason: str) -> Transition:
    """Return the transition that hands a task to another worker without counting a crash."""
    transition = _hand_over(turn, chain_task, reason, Usage())
    return transition if turn.state is TurnState.RUNNING else replace(transition, state=TurnState.RAN)


def retry_without_files(turn: Turn, chain_task: ChainTask, reason: str) -> Transition:
    """Return the transition that repeats a task later because session files could not be loaded or saved."""
    number = turn.handed_over + 1
    if number > MOST_HAND_OVERS and turn.state is TurnState.RUNNING:
        return fail_unvalidated(chain_task, reason, "files_unavailable")
    delay_ms = int(1000 * hand_over_delay(number))
    return replace(give_back_task(turn, chain_task, "files"), fields=progress(handed_over=number), delay_ms=delay_ms)


def explain_stopped_turn(turn: Turn, outcome: Outcome) -> Answer:
    """Return the error message for the user of a cancelled or expired turn."""
    texts = GIVEN_UP[outcome.value]
    return Answer(error=TurnError(code=outcome.value, message=texts.get(turn.request.locale, texts["en"])))


def _retry_later(ended: _FinishedRun, delays: Delays) -> Transition:
    turn, chain_task, result, completion = ended.turn, ended.chain_task, ended.result, ended.result.completion
    delay = delay_after(completion, turn.transients, delays)
    if delay is None:
        wait, left = completion.retry_after, max(0.0, delays.left)
        asked = f"the service asks to wait {wait:.0f} s, and the turn has {left:.0f} s left"
        return ended.fail_with_error(f"{completion.reason}; {asked}")
    may = find_turn_policy(turn).go_on and completion.kind is ErrorKind.TRANSIENT and not turn.interruption
    text = result.text if may else ""
    goes_on = len(trim_partial_marks(text)) >= LEAST
    fields = progress(transients=turn.transients + (not completion.busy))
    if completion.kind is ErrorKind.SESSION_LOST:
        fields |= progress(agent_session="")
    return ended.build_transition(
        attempt_facts(text=text, goes_on=True) if goes_on else _NO_FACTS,
        replace(retry_event(turn, chain_task.attempt, "transient", goes_on=goes_on), delay_seconds=delay),
        state=TurnState.QUEUED,
        next=chain_task,
        fields=fields,
        delay_ms=int(delay * 1000),
    )


def _handle_incomplete(ended: _FinishedRun, history: Sequence[AttemptRecord]) -> Transition:
    turn, chain_task, completion = ended.turn, ended.chain_task, ended.result.completion
    fails, reason = attempt_facts(decision="fail"), completion.reason
    if completion.verdict is Verdict.REFUSED:  # a second request would cost money and be refused again
        why = completion.why or IncompleteReason.REFUSED
        return ended.fail_turn(
            PendingFailure(outcome=Outcome.REFUSED, code="refused", reason=reason, why=why.value), fails
        )
    this = Attempt(number=chain_task.attempt, text=ended.result.text, answer="", complete=False, issues=())
    decision = decide_next([*to_policy_attempts(history), this], find_turn_policy(turn))
    if isinstance(decision, Retry):
        return ended.build_transition(
            ended.facts | attempt_facts(decision="retry", feedback=decision.feedback, goes_on=decision.goes_on),
            policy_retry_event(turn, chain_task, "incomplete", decision),
            state=TurnState.QUEUED,
            next=rerun_task(turn, chain_task.attempt + 1),
            fields=progress(transients=0),
        )
    why = completion.why or IncompleteReason.BROKE_OFF
    if isinstance(decision, Fail) and decision.fault:
        reason += f"; whether to ask again could not be decided: {decision.fault}"
    transition = ended.fail_turn(
        PendingFailure(outcome=Outcome.INCOMPLETE, code="incomplete", reason=reason, why=why.value), fails
    )
    if not find_work(turn.request).hands_on_incomplete:
        return transition
    found = ValidationIssue(code="INCOMPLETE_RESPONSE", message=reason, fix_hint="")
    return rescue_turn(turn, transition, FailedTurn(best=chain_task.attempt, reason="incomplete", issues=[found]))


def end_refused_run(turn: Turn, chain_task: ChainTask, refusal: NotAdmitted, unsent: Sequence[Body]) -> Transition:
    """Return the transition that ends a turn because a limit forbids another run. ``unsent`` events are added."""
    what = error_words(refusal.code, "de" if turn.request.locale == "de" else "en")
    message = f"{what[0]} ({refusal.kind or refusal})\n{what[1]}"
    error = TurnError(code=refusal.code, message=message, reason=str(refusal))
    return Transition(attempt=chain_task.attempt, outcome=Outcome.EXPIRED, answer=Answer(error=error), events=[*unsent])
