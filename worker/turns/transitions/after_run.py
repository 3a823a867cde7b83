"""The move after an agent run: a pure function from its result to a move. No clock, no store, no file.

Counting: incomplete runs use up attempts, passing errors do not. A turn whose last run was
incomplete ends ``incomplete``; a permanent error ends it as ``error``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from api_client.contract.completion import STARTS
from api_client.contract.counters import counter, model_of, timed
from api_client.contract.events import AttemptAccepted, AttemptCompleted, AttemptLost, AttemptRejected, Body
from api_client.contract.issues import TurnError, ValidationIssue
from api_client.contract.messages import GIVEN_UP
from api_client.contract.record import AttemptFacts, AttemptRecord, FieldChanges
from api_client.contract.tasks import FAIL, PHASE_VERIFY, VALIDATE, Link
from api_client.contract.tool_calls import ToolQuestion
from api_client.contract.turn import Failing, Outcome, Progress, Turn, TurnState
from api_client.turns.record.encoding import (
    Answer,
    Move,
    again,
    asked_for,
    attempt_facts,
    judged,
    policy_of,
    progress,
    retrying,
)
from worker.enforcement.attempt import Attempt
from worker.enforcement.going_on import LEAST, known
from worker.enforcement.policy import Retry, decide
from worker.runners.base import Completion, ErrorKind, RunResult, Verdict, Why
from worker.turns.transitions import tool_questions
from worker.turns.transitions.after_judging import Usage, cannot_judge, escalated
from worker.verification import Ground, VerificationResult, feedback_on

# The wait of a turn after a passing error. Pure.

#: Hand-overs of an attempt that are forgiven, and the longest wait after one, in seconds.
MOST_HAND_OVERS, _LONGEST_SECONDS = 8, 60.0


def hand_over_delay(number: int) -> float:
    """Seconds until an attempt runs again that its worker could not keep for the ``number``-th time, counted from 1.

    1, 2, 4, ... and never more than 60: a worker that is overloaded gets no better by being asked at once.
    """
    return min(2.0 ** (number - 1), _LONGEST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays in seconds.

    Attributes:
        first: the first one after a passing error; it doubles.
        left: the time until the turn's deadline.
    """

    first: float
    left: float = math.inf


def delay_after(completion: Completion, errors_before: int, delays: Delays) -> float | None:
    """Seconds until a passing error is tried again; None when the service asks for more than the turn has left.

    Args:
        completion: of the run that ended with the error.
        errors_before: passing errors of this attempt before it.
        delays: how long to wait.
    """
    if completion.kind is ErrorKind.SESSION_LOST:
        return 0.0
    asked = completion.retry_after
    if asked >= delays.left:
        return None
    if completion.busy:  # the store holds back all turns of this service (pauses.lua), this one too
        return 0.0
    return asked or delays.first * 2**errors_before


Facts = FieldChanges[AttemptFacts]

#: Errors that pass by themselves.
_PASSING = frozenset({ErrorKind.TRANSIENT, ErrorKind.SESSION_LOST})
#: Errors by which a service shows that it works.
_ANSWERS = frozenset({ErrorKind.PERMANENT, ErrorKind.LIMIT})
#: Longest reason that is shown while turns wait, in characters.
_QUOTED = 200
#: Longest wait that a service's limit is kept for, in seconds (pauses.lua has less).
_LONGEST_WAIT = 86_400.0
#: Why a run was stopped, where that ends the turn.
_CALLED_OFF = {"cancelled": Outcome.CANCELLED, "expired": Outcome.EXPIRED}


def after_run(
    turn: Turn,
    link: Link,
    result: RunResult,
    *,
    prompt: str,
    sent: Mapping[str, Any] | None = None,
    journal: Mapping[str, Any] | None = None,
    history: Sequence[AttemptRecord] = (),
    stop: str = "",
    unsent: Sequence[Body] = (),
    transient_retries: int,
    delays: Delays,
    fallbacks: Mapping[str, Sequence[str]] = MappingProxyType({}),
    strikes: int = 5,
    question: ToolQuestion | None = None,
) -> Move:
    """Return what follows from an agent run.

    ``sent`` is what the agent was really sent (``Sent.to_dict``) beyond ``prompt``; ``journal`` what it did with tools;
    ``stop`` why the run was stopped; ``unsent`` its events that are not logged yet; ``history`` the attempts before;
    ``delays`` after passing errors; ``strikes`` how often others may kill it; ``fallbacks`` of the turn's model: for
    each fault of its service the models that may take over, in order;
    ``question`` what a person is to be asked, where the run ended with that.
    """
    completion, usage = result.completion, Usage.of(result.usage)
    facts = _facts(turn, result, prompt, sent or {}, journal or {})
    ended = AttemptCompleted(
        attempt=link.attempt, verdict=completion.verdict.value, reason=completion.reason, usage=usage.reported()
    )
    if completion.verdict is Verdict.COMPLETE:
        move = _complete(turn, link, result.agent_session, facts, ended)
    elif completion.verdict is Verdict.ASKS and result.call and question and not stop:
        move = tool_questions.asked(turn, link, result.call, question, result.agent_session, facts, ended)
    elif stop in _CALLED_OFF and completion.verdict is not Verdict.ERROR:
        move = _called_off(turn, link, _CALLED_OFF[stop], facts, ended)
    elif stop or completion.verdict is Verdict.CANCELLED or completion.lost:
        move = _not_kept(turn, link, completion, stop, usage, facts, ended, strikes)
    elif completion.kind is ErrorKind.HOST:
        move = _handed_over(turn, link, "host", usage)
    elif model := _next_model(turn, completion, fallbacks, transient_retries):
        move = _passed_on(turn, link, completion, model, facts, ended)
    elif completion.kind in _PASSING and (completion.busy or turn.transients < transient_retries):
        move = _passing(turn, link, result, facts, ended, delays)
    elif completion.verdict is Verdict.ERROR:
        move = _cannot_work(turn, link, completion, facts, ended)
    else:
        move = _incomplete(turn, link, result, facts, ended, history)
    tokens, cost = _uncharged(turn, result.adopted)
    used = progress(tokens_used=tokens + usage.tokens, cost_used=cost + usage.microdollars)
    move = replace(
        move,
        fields=move.fields | used | _run_over(turn, move, completion),
        events=[*unsent, *move.events],
        counters=move.counters | _counted(turn, move, completion, usage),
    )
    return move if stop else _with_report(move, completion)


def _facts(turn: Turn, result: RunResult, prompt: str, sent: Mapping[str, Any], journal: Mapping[str, Any]) -> Facts:
    """The stored facts of a run; nothing of ``sent`` and ``journal`` where they are empty."""
    facts = attempt_facts(
        prompt=prompt,
        text=result.text,
        completion=_recorded(turn, result.completion),
        usage=dict(result.usage),
        last_delivery=result.adopted or turn.delivery,
        goes_on=False,
    )
    facts |= attempt_facts(sent=dict(sent)) if sent else attempt_facts()
    return facts | (attempt_facts(journal=dict(journal)) if journal else attempt_facts())


def _recorded(turn: Turn, completion: Completion) -> dict[str, Any]:
    """The completion as the attempt keeps it, with the models that could not answer in it before."""
    before = {model: fell for model, fell in turn.fell.items() if fell["attempt"] == turn.attempt}
    evidence = {**completion.evidence, "fallback_from": before} if before else completion.evidence
    return replace(completion, evidence=evidence).to_dict()


def _next_model(
    turn: Turn, completion: Completion, fallbacks: Mapping[str, Sequence[str]], transient_retries: int
) -> str:
    """The model that takes over after an error of this one's service; empty where none does, or not yet.

    An error that passes soon is tried again first. A limit (429, 529) may last: the turn does not wait for its end.
    """
    if completion.verdict is not Verdict.ERROR or completion.fault is None or turn.stage or turn.question:
        return ""
    if completion.kind in _PASSING and not completion.busy and turn.transients < transient_retries:
        return ""
    tried = {turn.request.model, turn.stage_model, *turn.fell}
    return next((model for model in fallbacks.get(completion.fault.value, ()) if model not in tried), "")


def _passed_on(
    turn: Turn, link: Link, completion: Completion, model: str, facts: Facts, ended: AttemptCompleted
) -> Move:
    """Another model runs the same attempt: it uses up none, and starts afresh."""
    fault = completion.fault.value if completion.fault else ""
    fell = {"attempt": link.attempt, "fault": fault, "reason": completion.reason[:_QUOTED], "next": model}
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=link,
        fields=progress(
            stage_model=model,
            agent_session="",
            transients=0,
            fell={**turn.fell, turn.stage_model or turn.request.model: fell},
        ),
        facts=facts,
        events=[ended, replace(retrying(turn, link.attempt, "model"), model=model)],
        run_ended=True,
    )


def _run_over(turn: Turn, move: Move, completion: Completion) -> FieldChanges[Progress]:
    """Forget what belongs to a run that ended."""
    if not move.run_ended:
        return progress()
    whole = completion.verdict is Verdict.COMPLETE
    return progress(handed_over=0, avoid="") | tool_questions.over(turn, move, whole=whole)


def _passing(turn: Turn, link: Link, result: RunResult, facts: Facts, ended: AttemptCompleted, delays: Delays) -> Move:
    """An error that passes by itself: the run is repeated, unless that would be too late."""
    completion = result.completion
    delay = delay_after(completion, turn.transients, delays)
    if delay is None:
        return _cannot_work(turn, link, _too_late(completion, delays), facts, ended)
    return _again_later(turn, link, result, ended, delay)


def _with_report(move: Move, completion: Completion) -> Move:
    """The move, with what the run reports about its model's service."""
    said = service_said(completion)
    if said not in {"failed", "limited"}:
        return replace(move, service=said)
    wait_ms = int(min(completion.retry_after, _LONGEST_WAIT) * 1000) if said == "limited" else 0
    return replace(move, service=said, service_reason=completion.reason[:_QUOTED], service_wait_ms=wait_ms)


def service_said(completion: Completion) -> str:
    """Return what a run reports about its model's service: ``answered``, ``limited``, ``failed``, or nothing.

    Only errors that the request did not cause are failures: 5xx, a lost connection. A limit (429, 529), a bad request
    and a refusal are answers of a service that works.
    """
    if completion.verdict in {Verdict.COMPLETE, Verdict.REFUSED, Verdict.ASKS}:
        return "answered"
    if completion.kind is ErrorKind.TRANSIENT:
        return "limited" if completion.busy else "failed"
    return "answered" if completion.kind in _ANSWERS else ""


def _uncharged(turn: Turn, adopted: int) -> tuple[int, int]:
    """Tokens and money used before this run; without what reapers charged for an adopted one, whose usage is known.

    Those who held the turn after it and were lost as well started no agent.
    """
    lost = min(turn.strikes, turn.delivery - adopted) if adopted else 0
    tokens, cost = turn.request.reserve
    return max(0, turn.tokens_used - lost * tokens), max(0, turn.cost_used - lost * cost)


def _counted(turn: Turn, move: Move, completion: Completion, usage: Usage) -> dict[str, int]:
    """Return what a run that ended is counted as; a complete one is wasted only when its answer is rejected."""
    model = model_of(turn)
    counted = usage.counted(model)
    if completion.verdict not in {Verdict.COMPLETE, Verdict.ASKS} or not move.run_ended:
        counted |= usage.wasted(model)
    if move.run_ended:
        again = completion.verdict is Verdict.ERROR and move.state is TurnState.QUEUED
        counted[counter("attempt.ended", "transient" if again else completion.verdict.value, model)] = 1
    start, ms = completion.evidence.get("start"), completion.evidence.get("start_ms")
    if start in STARTS and isinstance(ms, int):
        counted |= timed("time.start", ms, start)
    return counted


def _complete(turn: Turn, link: Link, agent_session: str, facts: Facts, ended: AttemptCompleted) -> Move:
    return Move(
        attempt=link.attempt,
        next=Link(VALIDATE if turn.request.phase is None else PHASE_VERIFY, link.attempt),
        fields=progress(agent_session=agent_session),
        facts=facts,
        events=[ended],
        run_ended=True,
    )


def _handed_over(turn: Turn, link: Link, reason: str, usage: Usage) -> Move:
    """The worker shuts down, could not keep its lease, or its machine is sick: the attempt is delivered again.

    No strike: nothing says that the turn is to blame. A worker whose lease another one has by now is refused.
    """
    lost = AttemptLost(attempt=link.attempt, delivery=turn.delivery, during=reason or "stopped", usage=usage.reported())
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=link,
        events=[lost],
        counters={"delivery.handed_over": 1},
    )


def _not_kept(
    turn: Turn,
    link: Link,
    completion: Completion,
    stop: str,
    usage: Usage,
    facts: Facts,
    ended: AttemptCompleted,
    strikes: int,
) -> Move:
    """The run was stopped for a reason that is not the agent's: the attempt is delivered again.

    A worker that ends hands over at once. One that lost its lease or its guard would lose it again: so each further
    run waits longer, and after ``MOST_HAND_OVERS`` the turn ends as an error. So does one that others killed
    ``strikes`` times; before that it goes on elsewhere.
    """
    if stop == "shutdown":
        return _handed_over(turn, link, stop, usage)
    number = turn.handed_over + 1
    if number > (strikes - 1 if completion.lost else MOST_HAND_OVERS):
        reason = f"the worker could not keep the agent running, {number} times in a row: {completion.reason}"
        return _cannot_work(turn, link, replace(completion, reason=reason), facts, ended, code="not_kept")
    move = _handed_over(turn, link, stop or _cause(completion), usage)
    move = replace(move, fields=progress(handed_over=number), delay_ms=int(1000 * hand_over_delay(number)))
    return elsewhere(turn, move, f"@{turn.worker.partition('@')[2]}$") if completion.lost else move


def _cause(completion: Completion) -> str:
    """Return why a run ended that nobody asked to stop."""
    if completion.lost:
        return "killed"
    return "guard died" if completion.evidence.get("stopped") == "guard died" else "stopped"


def elsewhere(turn: Turn, move: Move, avoid: str) -> Move:
    """A hand-over that leaves the turn to others than ``avoid`` (see ``Progress``), besides those it avoids already."""
    words = " ".join(dict.fromkeys([*turn.avoid.split(), avoid]))
    return replace(move, fields=move.fields | progress(avoid=words), delay_ms=max(move.delay_ms, 1))


def given_back(turn: Turn, link: Link, reason: str) -> Move:
    """A link that this machine cannot carry out, whatever it does: another worker carries it out. No strike."""
    move = _handed_over(turn, link, reason, Usage())
    return move if turn.state is TurnState.RUNNING else replace(move, state=TurnState.RAN)


def without_files(turn: Turn, link: Link, reason: str) -> Move:
    """The object store did not give or take the session's files: the link is delivered again, each time later."""
    number = turn.handed_over + 1
    if number > MOST_HAND_OVERS:
        return cannot_judge(link, reason, "files_unavailable")
    delay_ms = int(1000 * hand_over_delay(number))
    return replace(given_back(turn, link, "files"), fields=progress(handed_over=number), delay_ms=delay_ms)


def _called_off(turn: Turn, link: Link, outcome: Outcome, facts: Facts, ended: AttemptCompleted) -> Move:
    texts = GIVEN_UP[outcome.value]
    message = texts.get(turn.request.locale, texts["en"])
    return Move(
        attempt=link.attempt,
        facts=facts,
        events=[ended],
        outcome=outcome,
        answer=Answer(error=TurnError(code=outcome.value, message=message)),
        run_ended=True,
    )


def _too_late(completion: Completion, delays: Delays) -> Completion:
    """The wait that the service asks for ends after the turn's deadline: better said at once than found out then."""
    asked = (
        f"the service asks to wait {completion.retry_after:.0f} s, and the turn has {max(0.0, delays.left):.0f} s left"
    )
    return replace(completion, reason=f"{completion.reason}; {asked}")


def _again_later(turn: Turn, link: Link, result: RunResult, ended: AttemptCompleted, delay: float) -> Move:
    """A passing error: the same attempt again after a while; it goes on from a text that broke off with the error.

    That a service limits us is no error of the turn: it does not count.
    """
    kind = result.completion.kind
    may = policy_of(turn).go_on and kind is ErrorKind.TRANSIENT and not turn.question  # then its session goes on
    text = result.text if may else ""
    goes_on = len(known(text)) >= LEAST
    fields = progress(transients=turn.transients + (not result.completion.busy))
    if kind is ErrorKind.SESSION_LOST:
        fields |= progress(agent_session="")
    asking = replace(retrying(turn, link.attempt, "transient", goes_on=goes_on), delay_seconds=delay)
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=link,
        fields=fields,
        facts=attempt_facts(text=text, goes_on=True) if goes_on else attempt_facts(),
        events=[ended, asking],
        delay_ms=int(delay * 1000),
        run_ended=True,
    )


def _cannot_work(
    turn: Turn,
    link: Link,
    completion: Completion,
    facts: Facts,
    ended: AttemptCompleted,
    code: str = "",
) -> Move:
    code = code or (completion.kind.value if completion.kind else "error")
    return Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts=facts,
        fields=progress(failing=Failing(outcome=Outcome.ERROR, code=code, reason=completion.reason)),
        events=[ended],
        run_ended=True,
    )


def _refused(link: Link, completion: Completion, facts: Facts, ended: AttemptCompleted) -> Move:
    """The provider says that the model refused: to ask again would be paid for and bring the same."""
    why = completion.why.value if completion.why else Why.REFUSED.value
    failing = Failing(outcome=Outcome.REFUSED, code="refused", reason=completion.reason, why=why)
    return Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts=facts | attempt_facts(decision="fail"),
        fields=progress(failing=failing),
        events=[ended],
        run_ended=True,
    )


def _incomplete(
    turn: Turn,
    link: Link,
    result: RunResult,
    facts: Facts,
    ended: AttemptCompleted,
    history: Sequence[AttemptRecord],
) -> Move:
    if result.completion.verdict is Verdict.REFUSED:
        return _refused(link, result.completion, facts, ended)
    this = Attempt(number=link.attempt, text=result.text, answer="", complete=False, issues=())
    decision = decide([*judged(history), this], policy_of(turn))
    if isinstance(decision, Retry):
        return Move(
            attempt=link.attempt,
            state=TurnState.QUEUED,
            next=again(turn, link.attempt + 1),
            fields=progress(transients=0),
            facts=facts | attempt_facts(decision="retry", feedback=decision.feedback, goes_on=decision.goes_on),
            events=[ended, asked_for(turn, link, "incomplete", decision)],
            run_ended=True,
        )
    reason, why = result.completion.reason, result.completion.why or Why.BROKE_OFF
    failing = Failing(outcome=Outcome.INCOMPLETE, code="incomplete", reason=reason, why=why.value)
    move = Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts=facts | attempt_facts(decision="fail"),
        fields=progress(failing=failing),
        events=[ended],
        run_ended=True,
    )
    if turn.request.phase is None:
        return move
    found = ValidationIssue(code="INCOMPLETE_RESPONSE", message=reason, fix_hint="")
    return escalated(turn, move, best=link.attempt, reason="incomplete", issues=[found]) or move


# The move after verifying a phase: a pure function from the result to a move. No clock, no store, no file.
#
# A result counts once: it is recorded with its attempt by the commit that carries the lease's token, and a success is
# sealed before its files are published. Two verifications of one attempt cannot both count.

#: A verifier that cannot work, or gives no verdict, is asked so often for one attempt: the agent could not repair that.
VERIFIER_TRIES = 3


def after_verification(turn: Turn, link: Link, record: AttemptRecord, result: VerificationResult, stop: str) -> Move:
    """Return what follows; ``stop`` is why the verification was stopped, if it was."""
    if result.ground is Ground.STOPPED:
        return _stopped(turn, link, stop)
    if result.ground is Ground.REFUSED:
        return cannot_judge(link, "; ".join(result.errors))
    issues = _issues(result)
    facts = attempt_facts(verification=result.to_dict(), answer=record.text, issues=issues)
    if result.success:
        return Move(
            attempt=link.attempt,
            facts=facts | attempt_facts(decision="accept"),
            events=[AttemptAccepted(attempt=link.attempt, issues=issues)],
            counters=_judged(turn, "accept"),
            judged=True,
            outcome=Outcome.PASSED if link.attempt == 1 else Outcome.PASSED_AFTER_RETRY,
            answer=Answer(response=record.text),
        )
    if not result.judged and turn.unverified + 1 < VERIFIER_TRIES:
        return Move(
            attempt=link.attempt,
            next=link,
            fields=progress(unverified=turn.unverified + 1),
            facts=facts,
            delay_ms=1000 * 2**turn.unverified,
        )
    return _rejected(turn, link, record, result, facts, issues)


def _rejected(
    turn: Turn,
    link: Link,
    record: AttemptRecord,
    result: VerificationResult,
    facts: FieldChanges[AttemptFacts],
    issues: tuple[ValidationIssue, ...],
) -> Move:
    """Ask again while runs are left, else hand the turn on or give up."""
    model = model_of(turn)
    wasted = Usage.of(record.usage).wasted(model)
    rejected = AttemptRejected(attempt=link.attempt, issues=issues)

    def counted(decision: str) -> dict[str, int]:
        errors = [issue for issue in issues if issue.is_error]
        return {
            **_judged(turn, decision),
            **{counter("validator.rejected", issue.validator, decision, model): 1 for issue in errors},
            **{counter("code.rejected", issue.code, decision): 1 for issue in errors},
            **wasted,
        }

    if link.attempt < (turn.allowed or turn.request.max_attempts) and result.judged:
        return _ask_again(turn, link, result, facts, issues, rejected, counted("retry"))
    reason = "rejected" if result.judged else "the verifier gave no verdict"
    failing = Failing(code="phase_not_verified", reason=reason)
    move = Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        fields=progress(failing=failing, unverified=0, best=link.attempt),
        facts=facts | attempt_facts(decision="fail"),
        events=[rejected],
        counters=counted("fail"),
        judged=True,
    )
    handed_on = replace(move, counters=counted("escalate"))
    return escalated(turn, handed_on, best=link.attempt, reason=reason, issues=issues) or move


def _ask_again(
    turn: Turn,
    link: Link,
    result: VerificationResult,
    facts: FieldChanges[AttemptFacts],
    issues: tuple[ValidationIssue, ...],
    rejected: AttemptRejected,
    counters: dict[str, int],
) -> Move:
    feedback = feedback_on(result)
    codes = sorted({issue.code for issue in issues})
    asking = retrying(turn, link.attempt + 1, "rejected", codes=codes, feedback=feedback)
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=again(turn, link.attempt + 1),
        fields=progress(retries=turn.retries + 1, transients=0, unverified=0),
        facts=facts | attempt_facts(decision="retry", feedback=feedback),
        events=[rejected, asking],
        counters=counters,
        judged=True,
    )


def _judged(turn: Turn, decision: str) -> dict[str, int]:
    return {counter("attempt.judged", decision, model_of(turn)): 1, counter("phase.judged", decision): 1}


def _issues(result: VerificationResult) -> tuple[ValidationIssue, ...]:
    """The issues of the gates, and the verifier's errors as issues."""
    found = tuple(
        replace(issue, validator=gate.gate.partition(":")[0]) for gate in result.gates.results for issue in gate.issues
    )
    verifiers = tuple(
        ValidationIssue(code="NOT_VERIFIED", message=error, fix_hint="", validator="verifier")
        for error in result.errors
    )
    return found if found and result.ground is Ground.GATES else found + verifiers


def _stopped(turn: Turn, link: Link, stop: str) -> Move:
    """Cancelled, out of time, or handed over to another worker: then the same attempt is verified again."""
    if stop not in _CALLED_OFF:
        lost = AttemptLost(attempt=link.attempt, delivery=turn.delivery, during=stop or "stopped")
        return Move(
            attempt=link.attempt,
            next=link,
            events=[lost],
            counters={counter("delivery.handed_over"): 1},
        )
    outcome = _CALLED_OFF[stop]
    message = GIVEN_UP[outcome.value].get(turn.request.locale, GIVEN_UP[outcome.value]["en"])
    error = TurnError(code=outcome.value, message=message)
    return Move(attempt=link.attempt, outcome=outcome, answer=Answer(error=error))


def not_reached(turn: Turn, link: Link, before: str, outcome: str) -> Move:
    """The phase before did not pass, so this one is not run."""
    german = turn.request.locale == "de"
    text = (
        f"Nicht ausgeführt: die Phase davor ({before}) endete als {outcome}."
        if german
        else f"Not run: the phase before ({before}) ended as {outcome}."
    )
    error = TurnError(code="phase_not_reached", message=text)
    return Move(attempt=link.attempt, outcome=Outcome.CANCELLED, answer=Answer(error=error))
