"""The question whether an agent may make a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api_client.contract.decision import SHOW_COMMAND
from api_client.contract.interruption import Interruption
from api_client.contract.tool_calls import TOOL_CALL, ToolQuestion
from api_client.contract.word_tables import load_word_table
from api_client.interruptions.question import QuestionKind, QuestionView, translate_text, yes_no_choices

_WORDS = load_word_table(__file__)


class ToolApprovalQuestion(QuestionKind):
    """Asks a person whether the agent may make a tool call."""

    name = TOOL_CALL

    def show_question(self, interruption: Interruption, locale: str) -> QuestionView:
        """Return the question as shown to a person, with the complete tool call."""
        call = ToolQuestion.from_interruption(interruption)
        return QuestionView(
            title=translate_text(_WORDS, "title", locale),
            summary=f"may the agent do this? {call.tool} ({SHOW_COMMAND})",
            choices=yes_no_choices(locale),
            facts=(("tool", call.tool), *call.arguments.items()),
            remarks=(translate_text(_WORDS, "signs", locale),),
            note=translate_text(_WORDS, "note", locale),
            chat=call.text,
            link=translate_text(_WORDS, "link", locale),
            status=translate_text(_WORDS, "status", locale),
            elsewhere=translate_text(_WORDS, "elsewhere", locale),
        )

    def summarise_questions(self, counted: Mapping[str, Any], locale: str) -> str:
        """Return a sentence about approved calls that the agent never made, or an empty string."""
        return translate_text(_WORDS, "unused", locale, count=counted["unused"]) if counted.get("unused") else ""


KIND = ToolApprovalQuestion()
