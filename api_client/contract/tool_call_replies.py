"""Replies to an agent about a tool call that does not run, or that a person was asked about."""

from __future__ import annotations

from api_client.contract.decision import DecisionKind
from api_client.contract.interruption import Interruption
from api_client.contract.messages import _say
from api_client.contract.tool_calls import MAX_QUESTIONS, ToolQuestion


def tool_denied(locale: str) -> str:
    """Return the reply that tells the agent that the policy denies its tool call."""
    return _say("tool_denied", locale)


def tool_refused(locale: str, reason: str) -> str:
    """Return the reply that tells the agent why its tool call was refused without asking a person."""
    return _say(f"tool_{reason}", locale, most=MAX_QUESTIONS)


def tool_later(locale: str) -> str:
    """Return the reply that asks the agent to repeat a call later, because another call waits for approval."""
    return _say("tool_later", locale)


def tool_unused(locale: str, question: ToolQuestion) -> str:
    """Return the reply that reminds the agent of an approved call that it never made."""
    return _say("tool_unused", locale, call=question.words)


def tool_answered(locale: str, answered: Interruption) -> str:
    """Return the reply that gives the agent a person's answer about its tool call. No answer in time means no."""
    question, yes = ToolQuestion.of(answered), answered.answer == DecisionKind.APPROVE
    if question.refused:
        return tool_refused(locale, question.refused)
    name = "tool_answered_yes" if yes else "tool_answered_no"
    because = "_because" if answered.note and not yes else ""
    return _say(f"{name}{because}", locale, note=answered.note, call=question.words)
