"""Pure transitions after an agent run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from api_client.contract.attempt_record import AttemptFacts, AttemptRecord
from api_client.contract.completion import Completion, ErrorKind, Fault, Verdict, Why
from api_client.contract.counters import COUNTERS, counter, model_of, timed
from api_client.contract.error_codes import words_of
from api_client.contract.errors import NotAdmitted
from api_client.contract.event_kinds import AttemptCompleted, AttemptLost
from api_client.contract.events import Body
from api_client.contract.issue import ValidationIssue
from api_client.contract.messages import GIVEN_UP
from api_client.contract.record import FieldChanges
from api_client.contract.tasks import FAIL, Link, all_tasks
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.contract.work import find_work
from api_client.turns.record.moves import Answer, Move, again, asked_for, attempt_facts, judged, progress, retrying
from api_client.turns.record.turn_policy import policy_of
from worker.enforcement.attempt import Attempt
from worker.enforcement.going_on import LEAST, trim_partial_marks
from worker.enforcement.policy import Retry, decide_next
from worker.runners.base import RunResult
from worker.turns.interruptions.kind import Failure
from worker.turns.transitions.after_judging import cannot_judge
from worker.turns.transitions.backoff import MOST_HAND_OVERS, Delays, delay_after, hand_over_delay
from worker.turns.transitions.interruptions import rescued, run_ended, suspended
from worker.turns.transitions.usage import Usage

Facts = FieldChanges[AttemptFacts]
_NO_FACTS: Facts = attempt_facts()

#: Errors that usually disappear on a retry.
_PASSING = frozenset({ErrorKind.TRANSIENT, ErrorKind.SESSION_LOST})
#: Errors that prove the service itself works.
_ANSWERS = frozenset({ErrorKind.PERMANENT, ErrorKind.LIMIT})
#: Longest reason shown for waiting turns, in characters.
_QUOTED = 200
#: Longest wait accepted from a service, in seconds. The store limits the wait further.
_LONGEST_WAIT = 86_400.0
#: Outcomes of turns whose run was stopped on purpose.
CALLED_OFF = {"cancelled": Outcome.CANCELLED, "expired": Outcome.EXPIRED}


@dataclass(frozen=True, slots=True)
class _Ended:
    """A finished agent run with its turn, from which the possible transitions are built."""

    turn: Turn
    link: Link
    result: RunResult
    facts: Facts
    event: AttemptCompleted

    def move(self, facts: Facts | None = None, *more: Body, **changes: Any) -> Move:
        """Return a transition that stores the finished run, with the events ``more`` after the run's own event."""
        return Move(
            attempt=self.link.attempt,
            facts=self.facts if facts is None else facts,
            events=[self.event, *more],
            run_ended=True,
            **changes,
        )

    def fails(self, failing: PendingFailure, decision: Facts = _NO_FACTS) -> Move:
        """Return a transition that stores the finished run and then fails the turn."""
        next_link = Link(FAIL, self.link.attempt)
        return self.move(self.facts | decision, next=next_link, fields=progress(failing=failing))

    def cannot_work(self, reason: str, code: str = "") -> Move:
        """Return a transition that ends the turn with an error, for the given reason."""
        completion = self.result.completion
        if completion.spent:
            code = "no_credit"
        elif not code:  # an oversized request is the caller's to shorten, whatever kind of error the service reports
            kind = ErrorKind.LIMIT if completion.fault is Fault.CONTEXT_LENGTH else completion.kind
            code = kind.value if kind else "error"
        return self.fails(PendingFailure(outcome=Outcome.ERROR, code=code, reason=reason))


def after_run(
    turn: Turn,
    link: Link,
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
) -> Move:
    """Return the transition that follows from a finished agent run: validate, ask, retry or fail.

    ``sent`` is the agent's full input (``SentInput.to_dict``), ``evidence`` what rules collected, ``stop`` why the run
    was stopped, ``unsent`` its events not yet logged, ``strikes`` the most killed runs, ``answer_used`` the nonce of a
    used-up answer, and ``fallbacks`` the models that take over, by fault.
    """
    completion, usage = result.completion, Usage.of(result.usage)
    event = AttemptCompleted(
        attempt=link.attempt, verdict=completion.verdict.value, reason=completion.reason, usage=usage.reported()
    )
    ended = _Ended(turn, link, result, _facts(turn, result, prompt, sent, evidence), event)
    if completion.verdict is Verdict.COMPLETE:
        judged_by = all_tasks()[link.task].judged_by
        move = ended.move(next=Link(judged_by, link.attempt), fields=progress(agent_session=result.agent_session))
    elif completion.verdict is Verdict.ASKS and result.interruption and not stop:
        asked = replace(result.interruption, delivery=result.adopted or turn.delivery)
        move = suspended(turn, ended.move(fields=progress(agent_session=result.agent_session, transients=0)), asked)
    elif stop in CALLED_OFF and completion.verdict is not Verdict.ERROR:
        move = ended.move(outcome=CALLED_OFF[stop], answer=called_off(turn, CALLED_OFF[stop]))
    elif stop or completion.verdict is Verdict.CANCELLED or completion.lost:
        move = _not_kept(ended, stop, usage, strikes)
    elif completion.kind is ErrorKind.HOST:
        move = _handed_over(turn, link, "host", usage)
    elif model := _next_model(turn, completion, fallbacks, transient_retries):
        move = _passed_on(ended, model)
    elif completion.kind in _PASSING and (completion.busy or turn.transients < transient_retries):
        move = _again_later(ended, delays)
    elif completion.verdict is Verdict.ERROR:
        move = ended.cannot_work(completion.reason)
    else:
        move = _incomplete(ended, history)
    tokens, cost = _uncharged(turn, result.adopted)
    used = progress(tokens_used=tokens + usage.tokens, cost_used=cost + usage.microdollars)
    if move.run_ended:  # a finished run ends the count of hand-overs
        used |= progress(handed_over=0, avoid="")
        move = run_ended(turn, move, answer_used, whole=completion.verdict is Verdict.COMPLETE)
    move = replace(
        move,
        fields=move.fields | used,
        events=[*unsent, *move.events],
        counters=move.counters | _counted(turn, move, completion, usage),
    )
    return move if stop else _with_report(move, completion)


def _facts(
    turn: Turn,
    result: RunResult,
    prompt: str,
    sent: Mapping[str, Any] | None,
    evidence: Mapping[str, Any] | None,
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
    """Return the model that takes over after an error of the model's service, or an empty string.

    Passing errors are retried first. A rate limit (429, 529) may last, so another model takes over at once.
    """
    if completion.verdict is not Verdict.ERROR or completion.fault is None or turn.stage or turn.interruption:
        return ""
    if completion.kind in _PASSING and not completion.busy and turn.transients < transient_retries:
        return ""
    tried = {turn.request.model, turn.stage_model, *turn.fell}
    return next((model for model in fallbacks.get(completion.fault.value, ()) if model not in tried), "")


def _passed_on(ended: _Ended, model: str) -> Move:
    turn, link, completion = ended.turn, ended.link, ended.result.completion
    fault = completion.fault.value if completion.fault else ""
    fell = {"attempt": link.attempt, "fault": fault, "reason": completion.reason[:_QUOTED], "next": model}
    fallen = {**turn.fell, turn.stage_model or turn.request.model: fell}
    return ended.move(
        None,
        replace(retrying(turn, link.attempt, "model"), model=model),
        state=TurnState.QUEUED,
        next=link,
        fields=progress(stage_model=model, agent_session="", transients=0, fell=fallen),
    )


def _with_report(move: Move, completion: Completion) -> Move:
    """Return the transition with a report on whether the model's service worked during the run."""
    said = service_said(completion)
    if said not in {"failed", "limited", "spent"}:
        return replace(move, service=said)
    wait = {"limited": completion.retry_after, "spent": _LONGEST_WAIT}.get(said, 0.0)
    wait_ms = int(min(wait, _LONGEST_WAIT) * 1000)
    return replace(move, service=said, service_reason=completion.reason[:_QUOTED], service_wait_ms=wait_ms)


def service_said(completion: Completion) -> str:
    """Classify the state of a model's service after a run: answered, limited, spent, failed or "" (unknown).

    Only errors that the request did not cause are failures: 5xx and lost connections. Rate limits (429, 529), an empty
    account, a bad request and a refusal are answers of a working service.
    """
    if completion.spent:
        return "spent"
    if completion.verdict in {Verdict.COMPLETE, Verdict.REFUSED, Verdict.ASKS}:
        return "answered"
    if completion.kind is ErrorKind.TRANSIENT:
        return "limited" if completion.busy else "failed"
    return "answered" if completion.kind in _ANSWERS else ""


def _uncharged(turn: Turn, adopted: int) -> tuple[int, int]:
    """Return the tokens and the cost charged to a turn before this run, less the estimates for lost runs.

    The reaper charges lost runs by estimate; these charges are removed once an adopted run reports its real usage.
    Workers that lost the turn after the adopted run started no agent.
    """
    lost = min(turn.strikes, turn.delivery - adopted) if adopted else 0
    tokens, cost = turn.request.reserve
    return max(0, turn.tokens_used - lost * tokens), max(0, turn.cost_used - lost * cost)


def _counted(turn: Turn, move: Move, completion: Completion, usage: Usage) -> dict[str, int]:
    """Return the metrics counters of a finished run.

    A complete run counts as wasted only when its answer is rejected.
    """
    model = model_of(turn)
    counted = usage.counted(model)
    if completion.verdict not in {Verdict.COMPLETE, Verdict.ASKS} or not move.run_ended:
        counted |= usage.wasted(model)
    if move.run_ended:
        again = completion.verdict is Verdict.ERROR and move.state is TurnState.QUEUED
        counted[counter("attempt.ended", "transient" if again else completion.verdict.value, model)] = 1
    start, ms = completion.evidence.get("start"), completion.evidence.get("start_ms")
    if start in COUNTERS["time.start"].values and isinstance(ms, int):
        counted |= timed("time.start", ms, start)
    return counted


def _handed_over(turn: Turn, link: Link, reason: str, usage: Usage) -> Move:
    """Return the transition that queues the attempt for another worker, since this worker cannot finish it.

    The turn gets no strike. The store refuses this transition if another worker already holds the lease.
    """
    lost = AttemptLost(attempt=link.attempt, delivery=turn.delivery, during=reason or "stopped", usage=usage.reported())
    counters = {"delivery.handed_over": 1}
    return Move(attempt=link.attempt, state=TurnState.QUEUED, next=link, events=[lost], counters=counters)


def _not_kept(ended: _Ended, stop: str, usage: Usage, strikes: int) -> Move:
    """Return the transition that repeats an attempt whose run was stopped through no fault of the agent.

    A worker that shuts down hands the turn over at once. After a lost lease or a dead guard each further run waits
    longer. After ``MOST_HAND_OVERS`` hand-overs, or ``strikes`` killed runs, the turn ends as an error.
    """
    turn, link, completion = ended.turn, ended.link, ended.result.completion
    if stop == "shutdown":
        return _handed_over(turn, link, stop, usage)
    number = turn.handed_over + 1
    if number > (strikes - 1 if completion.lost else MOST_HAND_OVERS):
        reason = f"the worker could not keep the agent running, {number} times in a row: {completion.reason}"
        return ended.cannot_work(reason, code="not_kept")
    died = "guard died" if completion.evidence.get("stopped") == "guard died" else "stopped"
    move = _handed_over(turn, link, stop or ("killed" if completion.lost else died), usage)
    move = replace(move, fields=progress(handed_over=number), delay_ms=int(1000 * hand_over_delay(number)))
    return elsewhere(turn, move, f"@{turn.worker.partition('@')[2]}$") if completion.lost else move


def elsewhere(turn: Turn, move: Move, avoid: str) -> Move:
    """Return the transition extended with a pattern of workers that must not take the turn again."""
    words = " ".join(dict.fromkeys([*turn.avoid.split(), avoid]))
    return replace(move, fields=move.fields | progress(avoid=words), delay_ms=max(move.delay_ms, 1))


def given_back(turn: Turn, link: Link, reason: str) -> Move:
    """Return the transition that hands a task to another worker without counting a crash."""
    move = _handed_over(turn, link, reason, Usage())
    return move if turn.state is TurnState.RUNNING else replace(move, state=TurnState.RAN)


def without_files(turn: Turn, link: Link, reason: str) -> Move:
    """Return the transition that repeats a task later, because session files could not be loaded or saved.

    A finished run has cost money, so its turn waits until its deadline.
    """
    number = turn.handed_over + 1
    if number > MOST_HAND_OVERS and turn.state is TurnState.RUNNING:
        return cannot_judge(link, reason, "files_unavailable")
    delay_ms = int(1000 * hand_over_delay(number))
    return replace(given_back(turn, link, "files"), fields=progress(handed_over=number), delay_ms=delay_ms)


def called_off(turn: Turn, outcome: Outcome) -> Answer:
    """Return the error answer for the user of a cancelled or expired turn."""
    texts = GIVEN_UP[outcome.value]
    return Answer(error=TurnError(code=outcome.value, message=texts.get(turn.request.locale, texts["en"])))


def _again_later(ended: _Ended, delays: Delays) -> Move:
    """Return the transition that retries an attempt after a temporary error, or fails if time is too short.

    The retry continues text that the error interrupted. A rate limit does not count as an error.
    """
    turn, link, result, completion = ended.turn, ended.link, ended.result, ended.result.completion
    delay = delay_after(completion, turn.transients, delays)
    if delay is None:
        wait, left = completion.retry_after, max(0.0, delays.left)
        asked = f"the service asks to wait {wait:.0f} s, and the turn has {left:.0f} s left"
        return ended.cannot_work(f"{completion.reason}; {asked}")
    # A resumed run continues its agent session instead.
    may = policy_of(turn).go_on and completion.kind is ErrorKind.TRANSIENT and not turn.interruption
    text = result.text if may else ""
    goes_on = len(trim_partial_marks(text)) >= LEAST
    fields = progress(transients=turn.transients + (not completion.busy))
    if completion.kind is ErrorKind.SESSION_LOST:
        fields |= progress(agent_session="")
    return ended.move(
        attempt_facts(text=text, goes_on=True) if goes_on else _NO_FACTS,
        replace(retrying(turn, link.attempt, "transient", goes_on=goes_on), delay_seconds=delay),
        state=TurnState.QUEUED,
        next=link,
        fields=fields,
        delay_ms=int(delay * 1000),
    )


def _incomplete(ended: _Ended, history: Sequence[AttemptRecord]) -> Move:
    turn, link, completion = ended.turn, ended.link, ended.result.completion
    fails, reason = attempt_facts(decision="fail"), completion.reason
    if completion.verdict is Verdict.REFUSED:  # a second request would cost money and be refused again
        why = completion.why or Why.REFUSED
        return ended.fails(PendingFailure(outcome=Outcome.REFUSED, code="refused", reason=reason, why=why.value), fails)
    this = Attempt(number=link.attempt, text=ended.result.text, answer="", complete=False, issues=())
    decision = decide_next([*judged(history), this], policy_of(turn))
    if isinstance(decision, Retry):
        return ended.move(
            ended.facts | attempt_facts(decision="retry", feedback=decision.feedback, goes_on=decision.goes_on),
            asked_for(turn, link, "incomplete", decision),
            state=TurnState.QUEUED,
            next=again(turn, link.attempt + 1),
            fields=progress(transients=0),
        )
    why = completion.why or Why.BROKE_OFF
    move = ended.fails(
        PendingFailure(outcome=Outcome.INCOMPLETE, code="incomplete", reason=reason, why=why.value), fails
    )
    if not find_work(turn.request).hands_on_incomplete:
        return move
    found = ValidationIssue(code="INCOMPLETE_RESPONSE", message=reason, fix_hint="")
    return rescued(turn, move, Failure(best=link.attempt, reason="incomplete", issues=[found]))


def run_refused(turn: Turn, link: Link, refusal: NotAdmitted, unsent: Sequence[Body]) -> Move:
    """Return the transition that ends a turn because a limit forbids another run of the agent."""
    what = words_of(refusal.code, "de" if turn.request.locale == "de" else "en")
    message = f"{what[0]} ({refusal.kind or refusal})\n{what[1]}"
    error = TurnError(code=refusal.code, message=message, reason=str(refusal))
    return Move(attempt=link.attempt, outcome=Outcome.EXPIRED, answer=Answer(error=error), events=[*unsent])
