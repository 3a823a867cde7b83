"""Escalation after all attempts have failed: another model first, then a person (ADR-025, decision 3).

Stage 1 gives the task and the issues to another model in a fresh agent session. Stage 2 suspends the turn until a
person decides. Each stage is bounded and happens at most once; attempts ordered by a person return to that person. An
answer accepted by a person is marked ``passed_by_human``, because the checks still find errors.
"""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.counters import counter
from api_client.contract.decision import HANDED_ON, DecisionKind, TurnDecision
from api_client.contract.escalation import Escalation
from api_client.contract.event_kinds import TurnEscalated
from api_client.contract.interruption import Answerer, Interruption
from api_client.contract.messages import asked_again, consulted, line_of, rejected
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.contract.work import find_work
from api_client.interruptions.escalation_question import VERDICT
from api_client.turns.record.moves import Answer, Move, again, attempt_facts, progress, retrying
from worker.enforcement.documents.step import step_of
from worker.turns.interruptions.kind import Failure, InterruptionKind

STAGE_CONSULTANT, STAGE_HUMAN = 1, 2


class PersonVerdict(InterruptionKind):
    """Lets a person decide about the best answer of a turn whose attempts have all failed."""

    name = VERDICT

    def rescue(self, turn: Turn, move: Move, failure: Failure) -> Move | None:
        """Ask another model or a person instead of failing the turn. Return None if both were already asked."""
        escalation = Escalation.of(turn.request)
        if escalation is None:
            return None
        if failure.counters is not None:
            move = replace(move, counters=failure.counters)
        if turn.stage < STAGE_CONSULTANT and escalation.model and escalation.runs:
            return _asks_consultant(turn, move, escalation, failure)
        return self._asks_person(turn, move, escalation, failure) if escalation.human else None

    def _asks_person(self, turn: Turn, move: Move, escalation: Escalation, failure: Failure) -> Move:
        work = find_work(turn.request)
        asked = Interruption(
            kind=VERDICT,
            asked={"in_text": work.answers_in_text},
            reason=failure.reason,
            who=Answerer.SIGNED_IN.value,
            wait_seconds=escalation.timeout_seconds,
            silence=escalation.default,
        )
        move = replace(
            _handed_on(move, STAGE_HUMAN, failure),
            fields=move.fields
            | progress(stage=STAGE_HUMAN, best=failure.best, failing=PendingFailure(reason=failure.reason)),
            facts=move.facts | attempt_facts(decision=HANDED_ON),
        )
        return self.suspend(turn, move, asked)

    def resume(
        self, turn: Turn, asked: Interruption, decision: TurnDecision, number: int, best: AttemptRecord | None
    ) -> Move:
        """Carry out a person's decision: accept an answer, run the agent again, or fail the turn."""
        kind = decision.kind
        if kind is DecisionKind.RETRY:
            move = _asks_again(turn, number, decision.note, best)
        elif kind is DecisionKind.EDIT and find_work(turn.request).answers_in_text:
            move = _accepts(turn, number, decision.text)
        elif kind is not DecisionKind.REJECT and best is not None:
            move = _accepts(turn, best.number, best.mended or best.answer or best.text)
        else:
            move = _rejects(turn, decision, number, best)
        return replace(move, fields=move.fields | progress(interruption=None))


def _handed_on(move: Move, stage: int, failure: Failure, model: str = "") -> Move:
    issues = tuple(failure.issues)
    event = TurnEscalated(attempt=move.attempt, stage=stage, reason=failure.reason, model=model, issues=issues)
    counters = {**move.counters, counter("turn.escalated", str(stage)): 1}
    return replace(move, events=[*move.events, event], counters=counters)


def _asks_consultant(turn: Turn, move: Move, escalation: Escalation, failure: Failure) -> Move:
    hints = [line_of(issue) for issue in failure.issues]
    # Work outside sessions repeats its task at every fresh start anyway.
    task = turn.request.prompt if find_work(turn.request).in_session else ""
    return replace(
        _handed_on(move, STAGE_CONSULTANT, failure, escalation.model),
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
            best=failure.best,
        ),
        facts=move.facts | attempt_facts(decision=HANDED_ON, feedback=consulted(task, turn.request.locale, hints)),
    )


def _accepts(turn: Turn, number: int, text: str) -> Move:
    step, source = step_of(text) if find_work(turn.request).answers_in_text else ("", "")
    return Move(
        attempt=number,
        facts=attempt_facts(decision="accept"),
        outcome=Outcome.PASSED_BY_HUMAN,
        answer=Answer(response=text, step=step, step_source=source),
    )


def _asks_again(turn: Turn, number: int, note: str, best: AttemptRecord | None) -> Move:
    """Order another set of attempts with the person's note.

    If these attempts fail too, the turn returns to the inbox.
    """
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


def _rejects(turn: Turn, decision: TurnDecision, number: int, best: AttemptRecord | None) -> Move:
    issues = (best.remaining or best.issues) if best else ()
    lines = [line_of(issue) for issue in issues]
    error = TurnError(
        code="undecided" if decision.timed_out else "rejected",
        message=rejected(turn.request.locale, lines, note=decision.note, timed_out=decision.timed_out),
        reason=turn.failing.reason if turn.failing else "",
        issues=issues,
    )
    return Move(attempt=number, outcome=Outcome.FAILED, answer=Answer(error=error))
