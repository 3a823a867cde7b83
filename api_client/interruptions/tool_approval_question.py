"""The question whether an agent may make a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api_client.contract.interruption import Interruption
from api_client.contract.tool_calls import TOOL_CALL, ToolQuestion
from api_client.contract.word_tables import table_beside
from api_client.interruptions.question import QuestionKind, QuestionView, say, yes_or_no

_WORDS = table_beside(__file__)


class ToolApprovalQuestion(QuestionKind):
    """Asks a person whether the agent may make a tool call."""

    name = TOOL_CALL

    def show(self, asked: Interruption, locale: str) -> QuestionView:
        """Return the question as shown to a person, with the complete tool call."""
        call = ToolQuestion.of(asked)
        return QuestionView(
            title=say(_WORDS, "title", locale),
            summary=f"may the agent do this? {call.tool} (turns inbox show)",
            choices=yes_or_no(locale),
            facts=(("tool", call.tool), *call.arguments.items()),
            remarks=(say(_WORDS, "signs", locale),),
            note=say(_WORDS, "note", locale),
            chat=call.text,
            link=say(_WORDS, "link", locale),
            status=say(_WORDS, "status", locale),
            elsewhere=say(_WORDS, "elsewhere", locale),
        )

    def recap(self, counted: Mapping[str, Any], locale: str) -> str:
        """Return a sentence about approved calls that the agent never made, or an empty string if there are none."""
        return say(_WORDS, "unused", locale, count=counted["unused"]) if counted.get("unused") else ""
