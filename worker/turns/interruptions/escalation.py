"""Escalation after all attempts have failed: another model first, then a person (ADR-025, decision 3).

Stage 1 gives the task and the issues to another model in a fresh agent session. Stage 2 suspends the turn until a
person decides.
"""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.counters import counter_field
from api_client.contract.decision import HANDED_ON, DecisionKind, TurnDecision
from api_client.contract.escalation import Escalation
from api_client.contract.event_kinds import TurnEscalated
from api_client.contract.interruption import Answerer, Interruption
from api_client.contract.messages import format_issue, other_model_prompt, rejection_message, review_prompt
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.contract.work import find_work
from api_client.interruptions.escalation_question import VERDICT
from api_client.turns.record.transition import Answer, Transition, attempt_facts, progress, rerun_task, retry_event
from worker.enforcement.documents.step import step_of
from worker.turns.interruptions.kind import FailedTurn, InterruptionKind

STAGE_CONSULTANT, STAGE_HUMAN = 1, 2


class PersonVerdict(InterruptionKind):
    """Asks a person to decide about the best answer of a turn whose attempts have all failed."""

    name = VERDICT

    def rescue_turn(self, turn: Turn, transition: Transition, failure: FailedTurn) -> Transition | None:
        """Return the transition that asks another model or a person, or None if there is nobody left to ask."""
        escalation = Escalation.from_request(turn.request)
        if escalation is None:
            return None
        if failure.counters is not None:
            transition = replace(transition, counters=failure.counters)
        if turn.stage < STAGE_CONSULTANT and escalation.model and escalation.runs:
            return _ask_consultant(turn, transition, escalation, failure)
        return self._ask_person(turn, transition, escalation, failure) if escalation.human else None

    def _ask_person(
        self, turn: Turn, transition: Transition, escalation: Escalation, failure: FailedTurn
    ) -> Transition:
        work = find_work(turn.request)
        interruption = Interruption(
            kind=VERDICT,
            asked={"in_text": work.answers_in_text},
            reason=failure.reason,
            who=Answerer.SIGNED_IN.value,
            wait_seconds=escalation.timeout_seconds,
            silence=escalation.default,
        )
        transition = replace(
            _escalate(transition, STAGE_HUMAN, failure),
            fields=transition.fields
            | progress(stage=STAGE_HUMAN, best=failure.best, failing=PendingFailure(reason=failure.reason)),
            facts=transition.facts | attempt_facts(decision=HANDED_ON),
        )
        return self.suspend_turn(turn, transition, interruption)

    def resume_turn(
        self,
        turn: Turn,
        interruption: Interruption,
        decision: TurnDecision,
        attempt: int,
        shown_attempt: AttemptRecord | None,
    ) -> Transition:
        """Return the transition for a person's decision: accept an answer, run the agent again, or fail the turn."""
        kind = decision.kind
        if kind is DecisionKind.RETRY:
            transition = _grant_attempts(turn, attempt, decision.note, shown_attempt)
        elif kind is DecisionKind.EDIT and find_work(turn.request).answers_in_text:
            transition = _accept_answer(turn, attempt, decision.text)
        elif kind is not DecisionKind.REJECT and shown_attempt is not None:
            transition = _accept_answer(
                turn, shown_attempt.number, shown_attempt.mended or shown_attempt.answer or shown_attempt.text
            )
        else:
            transition = _reject_answer(turn, decision, attempt, shown_attempt)
        return replace(transition, fields=transition.fields | progress(interruption=None))


KIND = PersonVerdict()


def _escalate(transition: Transition, stage: int, failure: FailedTurn, model: str = "") -> Transition:
    issues = tuple(failure.issues)
    event = TurnEscalated(attempt=transition.attempt, stage=stage, reason=failure.reason, model=model, issues=issues)
    counters = {**transition.counters, counter_field("turn.escalated", str(stage)): 1}
    return replace(transition, events=[*transition.events, event], counters=counters)


def _ask_consultant(turn: Turn, transition: Transition, escalation: Escalation, failure: FailedTurn) -> Transition:
    hints = [format_issue(issue) for issue in failure.issues]
    task = turn.request.prompt if find_work(turn.request).in_session else ""
    return replace(
        _escalate(transition, STAGE_CONSULTANT, failure, escalation.model),
        state=TurnState.QUEUED,
        next=rerun_task(turn, transition.attempt + 1),
        fields=transition.fields
        | progress(
            stage=STAGE_CONSULTANT,
            stage_model=escalation.model,
            allowed=transition.attempt + escalation.runs,
            agent_session="",
            fresh_from=transition.attempt,
            transients=0,
            best=failure.best,
        ),
        facts=transition.facts
        | attempt_facts(decision=HANDED_ON, feedback=other_model_prompt(task, turn.request.locale, hints)),
    )


def _accept_answer(turn: Turn, attempt: int, text: str) -> Transition:
    step, source = step_of(text) if find_work(turn.request).answers_in_text else ("", "")
    return Transition(
        attempt=attempt,
        facts=attempt_facts(decision="accept"),
        outcome=Outcome.PASSED_BY_HUMAN,
        answer=Answer(response=text, step=step, step_source=source),
    )


def _grant_attempts(turn: Turn, attempt: int, note: str, shown_attempt: AttemptRecord | None) -> Transition:
    """Return the transition that runs the agent again with a person's note.

    From here on, the turn has as many attempts as it had at the beginning.
    """
    issues = (shown_attempt.remaining or shown_attempt.issues) if shown_attempt else ()
    hints = [format_issue(issue) for issue in issues]
    feedback = review_prompt(note, turn.request.locale, hints)
    allowed = attempt + turn.request.max_attempts
    asking = replace(retry_event(turn, attempt + 1, "decided", feedback=feedback), max_attempts=allowed)
    return Transition(
        attempt=attempt,
        state=TurnState.QUEUED,
        next=rerun_task(turn, attempt + 1),
        fields=progress(allowed=allowed, transients=0),
        facts=attempt_facts(feedback=feedback),
        events=[asking],
    )


def _reject_answer(turn: Turn, decision: TurnDecision, attempt: int, shown_attempt: AttemptRecord | None) -> Transition:
    issues = (shown_attempt.remaining or shown_attempt.issues) if shown_attempt else ()
    lines = [format_issue(issue) for issue in issues]
    error = TurnError(
        code="undecided" if decision.timed_out else "rejected",
        message=rejection_message(turn.request.locale, lines, note=decision.note, timed_out=decision.timed_out),
        reason=turn.failing.reason if turn.failing else "",
        issues=issues,
    )
    return Transition(attempt=attempt, outcome=Outcome.FAILED, answer=Answer(error=error))
