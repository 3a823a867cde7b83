"""The move after judging an answer: pure functions from findings to a move. No clock, no store, no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from api_client.contract.counters import OTHER, counter, model_of
from api_client.contract.declared import frozen
from api_client.contract.events import (
    AttemptAccepted,
    AttemptRejected,
    Body,
    TurnEscalated,
    TurnFallback,
    TurnMended,
    TurnParked,
)
from api_client.contract.issues import TurnError, ValidationIssue
from api_client.contract.messages import asked_again, broken_off, consulted, ending, line_of, rejected
from api_client.contract.policy import DecisionKind, Escalation, InboxDecision
from api_client.contract.record import AttemptFacts, AttemptRecord, FieldChanges
from api_client.contract.tasks import FAIL, FALLBACK, RETRY, Link
from api_client.contract.turn import Failing, Outcome, Turn, TurnState
from api_client.turns.record.encoding import (
    Answer,
    Move,
    again,
    asked_for,
    attempt_facts,
    policy_of,
    progress,
    retrying,
)
from worker.enforcement.attempt import GUARD, Attempt
from worker.enforcement.documents.splice import step_of, strip_marker
from worker.enforcement.policy import Accept, Decision, Fallback, Policy, Repaired, Retry, demote
from worker.enforcement.validators.codes import CODES, JudgingCost, clip
from worker.turns.transitions import tool_questions

# The move when all attempts have failed: pure functions to a move. No clock, no store, no file.
#
# Stage 1: another model on its own, in a fresh agent session, with the issues as hints and the state before all
# attempts. Stage 2: the turn is parked, and a person decides. Each stage is bounded, and a turn goes through each at
# most once; a turn that a person had asked again comes back to that person.

STAGE_CONSULTANT, STAGE_HUMAN = 1, 2


def escalated(turn: Turn, move: Move, *, best: int, reason: str, issues: Sequence[ValidationIssue]) -> Move | None:
    """The move that escalates instead of failing, or None when there is no stage left.

    The facts, events, fields and counters of ``move`` are kept. ``best`` is the attempt a person would accept,
    ``reason`` one word for why the attempts failed.
    """
    escalation = turn.request.escalation
    if escalation is None:
        return None
    if turn.stage < STAGE_CONSULTANT and escalation.model and escalation.runs:
        return _asks_consultant(turn, move, escalation, best, reason, issues)
    if escalation.human:
        return _parks(turn, move, escalation, best, reason, issues)
    return None


def _asks_consultant(
    turn: Turn, move: Move, escalation: Escalation, best: int, reason: str, issues: Sequence[ValidationIssue]
) -> Move:
    escalating = TurnEscalated(
        attempt=move.attempt,
        stage=STAGE_CONSULTANT,
        reason=reason,
        model=escalation.model,
        issues=tuple(issues),
    )
    hints = [line_of(issue) for issue in issues]
    return replace(
        move,
        state=TurnState.QUEUED,
        next=again(turn, move.attempt + 1),
        fields=move.fields
        | progress(
            stage=STAGE_CONSULTANT,
            stage_model=escalation.model,
            allowed=move.attempt + escalation.runs,
            agent_session="",
            fresh_from=move.attempt,
            transients=0,
            best=best,
        ),
        facts=move.facts
        | attempt_facts(decision="escalate", feedback=consulted(_task(turn), turn.request.locale, hints)),
        events=[*move.events, escalating],
        counters={**move.counters, counter("turn.escalated", str(STAGE_CONSULTANT)): 1},
    )


def _task(turn: Turn) -> str:
    """The task for an agent that starts afresh; every fresh start of a phase has it anyway."""
    return turn.request.prompt if turn.request.phase is None else ""


def _parks(
    turn: Turn, move: Move, escalation: Escalation, best: int, reason: str, issues: Sequence[ValidationIssue]
) -> Move:
    escalating = TurnEscalated(attempt=move.attempt, stage=STAGE_HUMAN, reason=reason, issues=tuple(issues))
    parked = TurnParked(
        attempt=move.attempt,
        turn_id=turn.turn_id,
        reason=reason,
        timeout_seconds=escalation.timeout_seconds,
        default=escalation.default,
    )
    return replace(
        move,
        state=TurnState.PARKED,
        next=None,
        fields=move.fields
        | progress(stage=STAGE_HUMAN, best=best, decide_default=escalation.default, failing=Failing(reason=reason)),
        facts=move.facts | attempt_facts(decision="escalate"),
        events=[*move.events, escalating, parked],
        counters={**move.counters, counter("turn.escalated", str(STAGE_HUMAN)): 1},
        park_seconds=escalation.timeout_seconds,
    )


# The use of an agent run: tokens and money, as the agent reported them. Pure.

#: Whatever an agent reports beyond this it did not use.
_MOST_USED = 1e12


@frozen(slots=True, kw_only=True)
class Usage:
    """Tokens, and money in US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    @classmethod
    def of(cls, reported: Mapping[str, Any]) -> Usage:
        """Return what a runner reported, as far as it makes sense."""
        if not reported:
            return NOTHING_USED
        return cls(
            input_tokens=int(_amount(reported.get("input_tokens"))),
            output_tokens=int(_amount(reported.get("output_tokens"))),
            cost_usd=_amount(reported.get("cost_usd")),
        )

    @classmethod
    def spent(cls, spent: JudgingCost) -> Usage:
        """Return what rules used of models while they judged."""
        return cls(input_tokens=spent.input_tokens, output_tokens=spent.output_tokens, cost_usd=spent.cost_usd)

    @property
    def as_judging(self) -> JudgingCost:
        """Return the cost of a model that judged, and did not answer."""
        return JudgingCost(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cost_usd=self.cost_usd)

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens

    @property
    def microdollars(self) -> int:
        """Millionths of a US dollar."""
        return int(self.cost_usd * 1e6)

    def reported(self) -> dict[str, Any] | None:
        """The event's data; nothing when nothing was reported."""
        if not self.tokens and not self.cost_usd:
            return None
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens, "cost_usd": self.cost_usd}

    def counted(self, model: str) -> dict[str, int]:
        """The counters of a run that used this."""
        amounts = {
            "tokens.input": self.input_tokens,
            "tokens.output": self.output_tokens,
            "cost.all": self.microdollars,
        }
        return {counter(name, model): amount for name, amount in amounts.items() if amount}

    def wasted(self, model: str) -> dict[str, int]:
        """The counters of a run that used this for an answer that was not accepted."""
        amounts = {"tokens.failed": self.tokens, "cost.failed": self.microdollars}
        return {counter(name, model): amount for name, amount in amounts.items() if amount}


NOTHING_USED = Usage()
_NO_MORE = attempt_facts()


def with_judging(turn: Turn, move: Move, spent: JudgingCost) -> Move:
    """The move that also charges the turn what its rules used of models: its budgets cover that too."""
    if not spent:
        return move
    used = Usage.spent(spent)
    charged = progress(tokens_used=turn.tokens_used + used.tokens, cost_used=turn.cost_used + used.microdollars)
    counters = dict(move.counters)
    for name, amount in used.counted(model_of(turn)).items():
        counters[name] = counters.get(name, 0) + amount
    return replace(move, fields=move.fields | charged, counters=counters)


def _amount(value: object) -> float:
    """A number an agent reported, if it is one that makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_USED:
        return 0.0
    return float(value)


def after_validation(
    turn: Turn, link: Link, attempt: Attempt, policy: Policy, decision: Decision, usage: Usage
) -> Move:
    """Return what follows from the validators' findings on one attempt, whose run had this ``usage``.

    ``decision`` is what ``policy``, the turn's, says about them.
    """
    answer = attempt.answer
    issues = demote(attempt.issues, policy, final=isinstance(decision, Accept))
    facts = attempt_facts(answer=answer, edits=attempt.edits, issues=issues, changes=tuple(attempt.changes))
    if isinstance(decision, Accept):
        step, source = step_of(answer)
        return Move(
            attempt=link.attempt,
            facts=facts | attempt_facts(decision="accept"),
            events=[AttemptAccepted(attempt=link.attempt, issues=issues)],
            counters=judged_counters(turn, "accept"),
            judged=True,
            outcome=Outcome.PASSED if link.attempt == 1 else Outcome.PASSED_AFTER_RETRY,
            answer=Answer(response=answer, step=step, step_source=source),
        )
    errors = [issue for issue in issues if issue.is_error]

    def rejects(decided: str, *events: Body, more: FieldChanges[AttemptFacts] = _NO_MORE, **changes: Any) -> Move:
        return Move(
            attempt=link.attempt,
            facts=facts | attempt_facts(decision=decided) | more,
            events=[AttemptRejected(attempt=link.attempt, issues=issues), *events],
            counters=rejected_counters(turn, decided, errors, usage),
            judged=True,
            **changes,
        )

    if isinstance(decision, Retry):
        return rejects(
            "retry",
            asked_for(turn, link, "rejected", decision),
            more=attempt_facts(feedback=decision.feedback),
            state=TurnState.QUEUED,
            next=Link(RETRY, link.attempt + 1),
            fields=progress(retries=turn.retries + 1, transients=0),
        )
    if isinstance(decision, Fallback):
        repairs = TurnFallback(attempt=decision.attempt, codes=tuple(sorted({issue.code for issue in errors})))
        best = progress(best=decision.attempt)
        return rejects("fallback", repairs, next=Link(FALLBACK, link.attempt), fields=best)
    move = rejects("fail", next=Link(FAIL, link.attempt), fields=progress(failing=_failing(decision.reason, attempt)))
    if decision.reason != "escalated":
        return move
    handed_on = replace(move, counters=rejected_counters(turn, "escalate", errors, usage))
    return escalated(turn, handed_on, best=decision.attempt, reason="rejected", issues=errors) or move


def _failing(reason: str, attempt: Attempt) -> Failing:
    if reason != "refused":
        return Failing(reason=reason)
    said = clip(" ".join(strip_marker(attempt.answer).split()), 200)
    return Failing(outcome=Outcome.REFUSED, code="refused", reason=f"the model refused: {said}", why="refused")


def judged_counters(turn: Turn, decision: str) -> dict[str, int]:
    """The counters of an answer, or a phase's output, that was judged."""
    model = model_of(turn)
    judged = {counter("attempt.judged", decision, model): 1}
    if turn.request.phase is not None:
        return judged | {counter("phase.judged", decision): 1}
    for name in turn.request.validators:
        judged[counter("validator.judged", name, model)] = 1
    return judged


def rejected_counters(turn: Turn, decision: str, errors: Sequence[ValidationIssue], usage: Usage) -> dict[str, int]:
    """The same of one with errors, whose run had this ``usage``."""
    validators, codes = _rules(turn, errors)
    return {
        **judged_counters(turn, decision),
        **{counter("validator.rejected", name, decision, model_of(turn)): 1 for name in validators},
        **{counter("code.rejected", code, decision): 1 for code in codes},
        **usage.wasted(model_of(turn)),
    }


def _rules(turn: Turn, issues: Sequence[ValidationIssue]) -> tuple[set[str], set[str]]:
    """The validators and codes of errors, as labels: unknown ones count as one.

    An error that no validator found, such as a file that is not taken, counts by its code alone.
    """
    errors = [issue for issue in issues if issue.is_error]
    if turn.request.phase is not None:  # gates and the verifier: a closed set of names
        return {issue.validator for issue in errors}, {issue.code for issue in errors}
    ours = {*turn.request.validators, GUARD}
    validators = {name if name in ours else OTHER for name in (issue.validator for issue in errors) if name}
    return validators, {code if code in CODES else OTHER for code in (issue.code for issue in errors)}


def after_fallback(turn: Turn, link: Link, best: int, repaired: Repaired) -> Move:
    """Decide after the fallback: the repaired answer passes, or the turn fails and the partial gains are kept."""
    left = demote(repaired.issues, policy_of(turn), final=True)
    facts = attempt_facts(changes=tuple(repaired.changes), mended=repaired.text)
    repair = TurnMended(
        attempt=best,
        changes=tuple(repaired.changes),
        fixed=tuple(repaired.fixed_issues),
        step=repaired.step,
        step_source=repaired.step_source,
    )
    if not any(issue.is_error for issue in left):
        return Move(
            attempt=best,
            facts=facts,
            events=[repair],
            outcome=Outcome.PASSED_BY_FALLBACK,
            answer=Answer(response=repaired.text, step=repaired.step, step_source=repaired.step_source),
        )
    return Move(
        attempt=best,
        next=Link(FAIL, link.attempt),
        facts=facts | attempt_facts(remaining=left),
        fields=progress(failing=Failing(reason="the fallback could not repair every error")),
        events=[repair] if repaired.changes else [],
    )


def after_giving_up(turn: Turn, link: Link, failing: Failing, issues: Sequence[ValidationIssue]) -> Move:
    """The honest end of a turn that has no acceptable answer: the message its user reads."""
    outcome = failing.outcome
    if outcome is Outcome.FAILED:
        lines = [line_of(issue) for issue in issues if issue.is_error]
    else:
        lines = [broken_off(failing.why or failing.code, turn.request.locale, failing.reason)]
    message = ending(outcome.value, turn.request.locale, lines, failing.code)
    error = TurnError(code=failing.code, message=message, reason=failing.reason, issues=tuple(issues))
    gave_up = gave_up_counters(turn, issues) if outcome is Outcome.FAILED else {}
    return Move(attempt=link.attempt, outcome=outcome, answer=Answer(error=error), end_counters=gave_up)


def gave_up_counters(turn: Turn, issues: Sequence[ValidationIssue]) -> dict[str, int]:
    """Return what a turn counts that failed with these issues left."""
    validators, codes = _rules(turn, issues)
    return {
        **{counter("validator.gave_up", name): 1 for name in validators},
        **{counter("code.gave_up", code): 1 for code in codes},
    }


def cannot_judge(link: Link, reason: str, code: str = "config") -> Move:
    """The validators cannot be made on this worker: the installation is wrong, and no other answer would help.

    ``code``: why else the turn cannot go on.
    """
    failing = Failing(outcome=Outcome.ERROR, code=code, reason=reason)
    return Move(attempt=link.attempt, next=Link(FAIL, link.attempt), fields=progress(failing=failing))


def with_shadow(turn: Turn, move: Move, issues: Sequence[ValidationIssue]) -> Move:
    """The move with what the rules in shadow found in the answer; ``issues`` as their own severity has them."""
    names = turn.request.applied.shadow if turn.request.applied else ()
    if not names:
        return move
    rejecting = {issue.validator for issue in issues if issue.is_error}
    counted = {counter("shadow.judged", name, model_of(turn)): 1 for name in names}
    counted |= {counter("shadow.rejected", name, model_of(turn)): 1 for name in names if name in rejecting}
    found = attempt_facts(shadow=tuple(issues))
    return replace(move, facts=move.facts | found, counters={**move.counters, **counted})


# The move after a decision on a parked turn: a pure function to a move. No clock, no store, no file.
#
# The answer a person accepts is marked as theirs (``passed_by_human``): the checks still find errors in it.


def after_decision(turn: Turn, number: int, best: AttemptRecord | None) -> Move:
    """Return what follows from the turn's ``decision``; ``number`` is the attempt it was parked after.

    ``best`` is the one that an approval accepts; None when there is none. Raises ``ValueError``: nothing was decided.
    """
    decision = turn.decision
    if decision is None:
        raise ValueError(f"turn {turn.turn_id} has no decision")
    kind = decision.kind
    if question := turn.asked:
        return tool_questions.answered(turn, question, decision, number)
    if kind is DecisionKind.RETRY:
        return _asks_again(turn, number, decision.note, best)
    if kind is DecisionKind.EDIT and turn.request.phase is None:
        return _accepts(turn, number, decision.text)
    if kind is not DecisionKind.REJECT and best is not None:
        return _accepts(turn, best.number, best.mended or best.answer or best.text)
    return _rejects(turn, decision, number, best)


def _accepts(turn: Turn, number: int, text: str) -> Move:
    step, source = step_of(text) if turn.request.phase is None else ("", "")
    return Move(
        attempt=number,
        facts=attempt_facts(decision="accept"),
        outcome=Outcome.PASSED_BY_HUMAN,
        answer=Answer(response=text, step=step, step_source=source),
    )


def _asks_again(turn: Turn, number: int, note: str, best: AttemptRecord | None) -> Move:
    """Another set of attempts, with what the person said; if it fails too, it comes back to the inbox."""
    issues = (best.remaining or best.issues) if best else ()
    hints = [line_of(issue) for issue in issues]
    feedback = asked_again(note, turn.request.locale, hints)
    allowed = number + turn.request.max_attempts
    asking = replace(retrying(turn, number + 1, "decided", feedback=feedback), max_attempts=allowed)
    return Move(
        attempt=number,
        state=TurnState.QUEUED,
        next=again(turn, number + 1),
        fields=progress(allowed=allowed, transients=0),
        facts=attempt_facts(feedback=feedback),
        events=[asking],
    )


def _rejects(turn: Turn, decision: InboxDecision, number: int, best: AttemptRecord | None) -> Move:
    """The honest end: why it was handed to a person, and that nobody accepted it."""
    issues = (best.remaining or best.issues) if best else ()
    lines = [line_of(issue) for issue in issues]
    error = TurnError(
        code="undecided" if decision.timed_out else "rejected",
        message=rejected(turn.request.locale, lines, note=decision.note, timed_out=decision.timed_out),
        reason=turn.failing.reason if turn.failing else "",
        issues=issues,
    )
    gave_up = gave_up_counters(turn, issues)
    return Move(attempt=number, outcome=Outcome.FAILED, answer=Answer(error=error), end_counters=gave_up)


# A run and the verdict on its answer as one move. Pure.


@frozen(slots=True)
class JudgedRun:
    """A run whose answer was judged before it was stored.

    Attributes:
        verdict: what followed from the answer alone. move: the run as it is stored, and what follows from its answer.
    """

    verdict: Move
    move: Move

    @classmethod
    def of(cls, run: Move, verdict: Move, judged_ms: int = 0) -> JudgedRun:
        """The verdict follows the run, in the log as in all else; ``judged_ms`` is the time between the two."""
        counters = dict(run.counters)
        for name, by in verdict.counters.items():
            counters[name] = counters.get(name, 0) + by
        move = replace(
            verdict,
            fields=run.fields | verdict.fields,
            facts=run.facts | verdict.facts,
            events=[*run.events, *verdict.events],
            counters=counters,
            run_ended=True,
            judged_ms=judged_ms,
            service=run.service,
            service_reason=run.service_reason,
        )
        return cls(verdict, move)
