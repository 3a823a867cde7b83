"""Tool calls that need a person's approval: silence counts as no, and a yes allows a single call once."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import DecisionKind, TurnDecision
from api_client.contract.errors import SettingsError
from api_client.contract.event_kinds import AttemptNote
from api_client.contract.interruption import Interruption
from api_client.contract.settings.redaction import secrets_of
from api_client.contract.tool_call_replies import tool_answered, tool_denied, tool_later, tool_refused, tool_unused
from api_client.contract.tool_calls import MAX_QUESTIONS, TOOL_CALL, ToolQuestion
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from api_client.turns.record.moves import Move
from worker.runners.approval import ApprovalServer
from worker.runners.base import Order, ToolOrders
from worker.turns.interruptions.kind import InterruptionKind, RunGround, asks_anew, counted, goes_on

_YES, _NO = DecisionKind.APPROVE.value, DecisionKind.REJECT.value


class ToolApproval(InterruptionKind):
    """Suspends a turn until a person approves or denies a tool call, if the policy demands approval."""

    name = TOOL_CALL

    def suspend(self, turn: Turn, move: Move, asked: Interruption) -> Move:
        """Return the transition that suspends the turn.

        A call that no person can be shown is refused at once, with a note to the agent.
        """
        before = turn.interruption
        if before and before.asked.get("call") == asked.asked["call"] and before.answer == _YES:
            asked = replace(asked, reason="asked_again")
        move = super().suspend(turn, move, asked)
        refused = asked.asked.get("refused", "")
        why = [AttemptNote(attempt=move.attempt, text=tool_refused(turn.request.locale, refused))] if refused else []
        return replace(move, events=[*move.events, *why])

    def resume(
        self, turn: Turn, asked: Interruption, decision: TurnDecision, number: int, best: AttemptRecord | None
    ) -> Move:
        """Return the transition that runs the agent again. Only a person's explicit approval allows the call."""
        yes = decision.kind is DecisionKind.APPROVE and not decision.timed_out
        kind = DecisionKind.APPROVE if yes else DecisionKind.REJECT
        return super().resume(turn, asked, replace(decision, kind=kind), number, best)

    def end(self, turn: Turn, move: Move, asked: Interruption, *, used: bool, whole: bool) -> Move:
        """Return the transition without the question after the resumed run.

        An approved call that never ran is counted and noted.
        """
        move, anew = super().end(turn, move, asked, used=used, whole=whole), asks_anew(move)
        again = anew and move.fields.values["interruption"].asked.get("digest") == asked.asked["digest"]
        if asked.answer != _YES or used or again or (goes_on(move) and not anew):
            return move
        unused = AttemptNote(attempt=move.attempt, text=tool_unused(turn.request.locale, ToolQuestion.of(asked)))
        fields = move.fields | counted(turn, move, TOOL_CALL, "unused")
        return replace(move, fields=fields, events=[*move.events, unused])

    def adopts(self, turn: Turn, asked: Interruption) -> bool:
        """Return False for a run with an unused approval, because its approval server died with the worker."""
        return asked.answer != _YES or bool(turn.answer_used)

    def equip(self, order: Order, ground: RunGround) -> Order:
        """Return the order with the policy's tool rules, and with a server that tells the run a person's answer."""
        turn, locale = ground.turn, ground.turn.request.locale
        try:
            file = ground.policy()
        except ValueError as error:
            raise SettingsError([str(error)]) from None
        rules = [rule for rule in file.tools if rule.concerns(order.model, turn.request.key)] if file else []
        if not rules:
            return order
        asked = turn.interruption if turn.interruption and turn.interruption.kind == TOOL_CALL else None
        most = turn.interruptions.get(TOOL_CALL, {}).get("asked", 0) >= MAX_QUESTIONS
        server = None
        if asked:
            server = ApprovalServer(asked, order.directory, None if turn.answer_used else ground.use_up)
            ground.at_end(server.close)
        tools = ToolOrders(
            rules=tuple(rule.to_dict() for rule in rules),
            root=ground.settings.root,
            asks=find_work(turn.request).in_session and not most,
            approval_socket=server.path if server else None,
            denied=tool_denied(locale),
            unasked=tool_refused(locale, "limit") if most else tool_denied(locale),
            later=tool_later(locale),
            said=tool_answered(locale, asked) if asked else "",
            secrets=tuple(secrets_of(ground.settings)),
        )
        return replace(order, tools=tools)
