"""Replies to an agent about a tool call that does not run, or about which a person was asked."""

from __future__ import annotations

from api_client.contract.decision import DecisionKind
from api_client.contract.interruption import Interruption
from api_client.contract.messages import _translate
from api_client.contract.tool_calls import MAX_QUESTIONS, ToolQuestion


def reply_denied(locale: str) -> str:
    """Return the reply that tells the agent that the policy forbids a tool call."""
    return _translate("tool_denied", locale)


def reply_not_asked(locale: str, reason: str) -> str:
    """Return the reply that tells the agent why a tool call was refused without asking a person."""
    return _translate(f"tool_{reason}", locale, most=MAX_QUESTIONS)


def reply_later(locale: str) -> str:
    """Return the reply that asks the agent to repeat a call later, because another call awaits approval."""
    return _translate("tool_later", locale)


def reply_unused(locale: str, question: ToolQuestion) -> str:
    """Return the reply that reminds the agent of an approved call that it has not made."""
    return _translate("tool_unused", locale, call=question.words)


def reply_answered(locale: str, answered: Interruption) -> str:
    """Return the reply that tells the agent a person's decision about a tool call. Silence means no."""
    question, yes = ToolQuestion.from_interruption(answered), answered.answer == DecisionKind.APPROVE
    if question.refused:
        return reply_not_asked(locale, question.refused)
    name = "tool_answered_yes" if yes else "tool_answered_no"
    because = "_because" if answered.note and not yes else ""
    return _translate(f"{name}{because}", locale, note=answered.note, call=question.words)
