"""Tool calls that need a person's approval: no answer counts as no, and a yes allows one call once."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import DecisionKind, TurnDecision
from api_client.contract.errors import SettingsError
from api_client.contract.event_kinds import AttemptNote
from api_client.contract.interruption import Interruption
from api_client.contract.settings.redaction import list_secrets
from api_client.contract.tool_call_replies import (
    reply_answered,
    reply_denied,
    reply_later,
    reply_not_asked,
    reply_unused,
)
from api_client.contract.tool_calls import MAX_QUESTIONS, TOOL_CALL, ToolQuestion
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from api_client.turns.record.transition import Transition
from worker.runners.approval_server import ApprovalServer
from worker.runners.base import Order, ToolOrders
from worker.turns.interruptions.kind import (
    InterruptionKind,
    RunContext,
    asks_again,
    continues_attempt,
    count_interruption,
)

_YES, _NO = DecisionKind.APPROVE.value, DecisionKind.REJECT.value


class ToolApproval(InterruptionKind):
    """Suspends a turn until a person approves or denies a tool call, if the policy demands approval."""

    name = TOOL_CALL

    def suspend_turn(self, turn: Turn, transition: Transition, interruption: Interruption) -> Transition:
        """Return the transition that suspends the turn until a person decides on the tool call.

        A call that no person can be shown is refused at once, with a note to the agent.
        """
        before = turn.interruption
        if before and before.asked.get("call") == interruption.asked["call"] and before.answer == _YES:
            interruption = replace(interruption, reason="asked_again")
        transition = super().suspend_turn(turn, transition, interruption)
        refused = interruption.asked.get("refused", "")
        why = (
            [AttemptNote(attempt=transition.attempt, text=reply_not_asked(turn.request.locale, refused))]
            if refused
            else []
        )
        return replace(transition, events=[*transition.events, *why])

    def resume_turn(
        self,
        turn: Turn,
        interruption: Interruption,
        decision: TurnDecision,
        attempt: int,
        shown_attempt: AttemptRecord | None,
    ) -> Transition:
        """Return the transition that reruns the agent. Only a person's explicit approval allows the tool call."""
        yes = decision.kind is DecisionKind.APPROVE and not decision.timed_out
        kind = DecisionKind.APPROVE if yes else DecisionKind.REJECT
        return super().resume_turn(turn, interruption, replace(decision, kind=kind), attempt, shown_attempt)

    def end_run(
        self,
        turn: Turn,
        transition: Transition,
        interruption: Interruption,
        *,
        decision_used: bool,
        answer_complete: bool,
    ) -> Transition:
        """Return the transition that ends a resumed run, with a note if the agent never made the approved tool call."""
        transition, anew = (
            super().end_run(
                turn, transition, interruption, decision_used=decision_used, answer_complete=answer_complete
            ),
            asks_again(transition),
        )
        again = anew and transition.fields.values["interruption"].asked.get("digest") == interruption.asked["digest"]
        if interruption.answer != _YES or decision_used or again or (continues_attempt(transition) and not anew):
            return transition
        unused = AttemptNote(
            attempt=transition.attempt,
            text=reply_unused(turn.request.locale, ToolQuestion.from_interruption(interruption)),
        )
        fields = transition.fields | count_interruption(turn, transition, TOOL_CALL, "unused")
        return replace(transition, fields=fields, events=[*transition.events, unused])

    def may_adopt_run(self, turn: Turn, interruption: Interruption) -> bool:
        """Return False if a person approved a tool call that the dead worker's run did not make."""
        return interruption.answer != _YES or bool(turn.answer_used)

    def extend_order(self, order: Order, context: RunContext) -> Order:
        """Add the policy's tool rules and approval socket to ``order``, which has a run's prompt, folder and limits."""
        turn, locale = context.turn, context.turn.request.locale
        try:
            file = context.policy()
        except ValueError as error:
            raise SettingsError([str(error)]) from None
        rules = [rule for rule in file.tools if rule.matches(order.model, turn.request.key)] if file else []
        if not rules:
            return order
        interruption = turn.interruption if turn.interruption and turn.interruption.kind == TOOL_CALL else None
        most = turn.interruptions.get(TOOL_CALL, {}).get("asked", 0) >= MAX_QUESTIONS
        server = None
        if interruption:
            server = ApprovalServer(interruption, order.directory, None if turn.answer_used else context.use_up)
            context.at_end(server.close)
        tools = ToolOrders(
            rules=tuple(rule.to_dict() for rule in rules),
            root=context.settings.root,
            asks=find_work(turn.request).in_session and not most,
            approval_socket=server.path if server else None,
            denied=reply_denied(locale),
            unasked=reply_not_asked(locale, "limit") if most else reply_denied(locale),
            later=reply_later(locale),
            said=reply_answered(locale, interruption) if interruption else "",
            secrets=tuple(list_secrets(context.settings)),
        )
        return replace(order, tools=tools)


KIND = ToolApproval()
