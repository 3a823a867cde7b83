"""What an agent hears about a tool call that does not run, or that a person was asked about."""

from __future__ import annotations

from api_client.contract.decision import DecisionKind
from api_client.contract.interruption import Interruption
from api_client.contract.messages import _say
from api_client.contract.tool_calls import MAX_QUESTIONS, ToolQuestion


def tool_denied(locale: str) -> str:
    """The words about a call that the policy denies."""
    return _say("tool_denied", locale)


def tool_refused(locale: str, reason: str) -> str:
    """The words about a call that nobody was asked about: ``too_long``, ``with_secret``, or ``limit`` of questions."""
    return _say(f"tool_{reason}", locale, most=MAX_QUESTIONS)


def tool_later(locale: str) -> str:
    """The words about a call that comes together with one that a person is asked about, or has allowed."""
    return _say("tool_later", locale)


def tool_unused(locale: str, question: ToolQuestion) -> str:
    """The words about a call that a person allowed, and that the agent never made."""
    return _say("tool_unused", locale, call=question.words)


def tool_answered(locale: str, answered: Interruption) -> str:
    """The words about a person's answer, with what they wrote; a no is also what silence means."""
    question, yes = ToolQuestion.of(answered), answered.answer == DecisionKind.APPROVE
    if question.refused:
        return tool_refused(locale, question.refused)
    name = "tool_answered_yes" if yes else "tool_answered_no"
    because = "_because" if answered.note and not yes else ""
    return _say(f"{name}{because}", locale, note=answered.note, call=question.words)
