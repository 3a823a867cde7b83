"""The moves of a question about a tool call: a person is asked, has answered, and it is over. Pure."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptFacts
from api_client.contract.escalation import DecisionKind, InboxDecision
from api_client.contract.event_kinds import AttemptCompleted, AttemptNote, TurnParked
from api_client.contract.record import FieldChanges
from api_client.contract.tasks import Link
from api_client.contract.tool_calls import ToolQuestion, WaitingCall
from api_client.contract.tool_replies import tool_refused, tool_unused
from api_client.contract.turn import Turn, TurnState
from api_client.turns.record.moves import Move, again, progress


def asked(
    turn: Turn,
    link: Link,
    call: WaitingCall,
    question: ToolQuestion,
    agent_session: str,
    facts: FieldChanges[AttemptFacts],
    ended: AttemptCompleted,
) -> Move:
    """A person is asked about a call. Nobody holds the turn meanwhile; without a yes the call never runs.

    A call that nobody can be shown is answered at once, and the agent goes on.
    """
    before = turn.asked
    known = bool(before and before.call == question.call and before.allowed == "yes")
    asking = progress(agent_session=agent_session, question=question.to_dict(), transients=0)
    asking |= progress(questions=turn.questions + 1, permit="")
    if question.refused:
        why = AttemptNote(attempt=link.attempt, text=tool_refused(turn.request.locale, question.refused))
        return Move(
            attempt=link.attempt,
            state=TurnState.QUEUED,
            next=again(turn, link.attempt),
            fields=asking,
            facts=facts,
            events=[ended, why],
            run_ended=True,
        )
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
        fields=asking | progress(decide_default=DecisionKind.REJECT.value),
        facts=facts,
        events=[ended, parked],
        park_seconds=float(call.wait_seconds),
        run_ended=True,
    )


def answered(turn: Turn, question: ToolQuestion, decision: InboxDecision, number: int) -> Move:
    """The agent goes on from its question: ``yes`` lets this one call run, once."""
    allowed = "yes" if decision.kind is DecisionKind.APPROVE and not decision.timed_out else "no"
    said = replace(question, allowed=allowed, note=decision.note)
    return Move(
        attempt=number,
        state=TurnState.QUEUED,
        next=again(turn, number),
        fields=progress(question=said.to_dict()),
    )


def over(turn: Turn, move: Move, permit: str, *, whole: bool) -> Move:
    """The move of a run that went on from a question: the question is forgotten, unless its attempt goes on from it.

    ``permit``: the run's nonce, if it used up the yes. ``whole``: the run ended with a whole answer. A call that was
    allowed and never ran is noted.
    """
    goes_on = move.state is TurnState.QUEUED and move.next is not None and move.next.attempt == move.attempt
    asks = "question" in move.fields.values
    fields, events, asked = progress(), move.events, turn.asked
    if asked is None:
        return move
    if not asks:
        fields |= progress(permit=permit or turn.permit)
    if not asks and not goes_on:
        # A session that ends with a call that waits is of no use to another attempt.
        fields |= progress(question={}) | (progress() if whole else progress(agent_session=""))
    open_yes = asked.allowed == "yes" and not permit and not turn.permit
    asks_again = asks and move.fields.values["question"]["digest"] == asked.digest
    if open_yes and not asks_again and (asks or not goes_on):
        fields |= progress(unused=turn.unused + 1)
        events = [*events, AttemptNote(attempt=move.attempt, text=tool_unused(turn.request.locale, asked))]
    return replace(move, fields=move.fields | fields, events=events)
