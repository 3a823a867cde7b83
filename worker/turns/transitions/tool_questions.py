"""The moves of a question about a tool call: a person is asked, has answered, and it is over. Pure."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.events import AttemptCompleted, TurnParked
from api_client.contract.policy import DecisionKind, InboxDecision
from api_client.contract.record import AttemptFacts, FieldChanges
from api_client.contract.tasks import Link
from api_client.contract.tool_calls import ToolQuestion, WaitingCall
from api_client.contract.turn import Progress, Turn, TurnState
from api_client.turns.record.encoding import Move, again, progress


def asked(
    turn: Turn,
    link: Link,
    call: WaitingCall,
    question: ToolQuestion,
    agent_session: str,
    facts: FieldChanges[AttemptFacts],
    ended: AttemptCompleted,
) -> Move:
    """A person is asked about a call. Nobody holds the turn meanwhile; without a yes the call never runs."""
    before = turn.asked
    known = bool(before and before.call == question.call and before.allowed == "yes")
    parked = TurnParked(
        attempt=link.attempt,
        turn_id=turn.turn_id,
        reason="asked_again" if known else "tool_call",
        timeout_seconds=float(call.wait_seconds),
        default=DecisionKind.REJECT.value,
        question=question.to_dict(),
    )
    return Move(
        attempt=link.attempt,
        state=TurnState.PARKED,
        fields=progress(
            agent_session=agent_session,
            question=question.to_dict(),
            decide_default=DecisionKind.REJECT.value,
            transients=0,
        ),
        facts=facts,
        events=[ended, parked],
        park_seconds=float(call.wait_seconds),
        run_ended=True,
    )


def answered(turn: Turn, question: ToolQuestion, decision: InboxDecision, number: int) -> Move:
    """The agent goes on from its question: ``yes`` lets this one call run, once."""
    allowed = "yes" if decision.kind is DecisionKind.APPROVE and not decision.timed_out else "no"
    said = replace(question, allowed=allowed, note=decision.note, answered=turn.delivery)
    return Move(
        attempt=number,
        state=TurnState.QUEUED,
        next=again(turn, number),
        fields=progress(question=said.to_dict()),
    )


def over(move: Move, *, whole: bool) -> FieldChanges[Progress]:
    """Forget a question when its attempt goes on from it no more; ``whole``: the run ended with a whole answer."""
    goes_on = move.state is TurnState.QUEUED and move.next is not None and move.next.attempt == move.attempt
    if "question" in move.fields.values or goes_on:
        return progress()
    # A session that ends with a call that waits is of no use to another attempt.
    return progress(question={}) | (progress() if whole else progress(agent_session=""))
