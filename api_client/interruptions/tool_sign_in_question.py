"""The question whether a person signs in to an MCP server that the agent wants to use."""

from __future__ import annotations

from api_client.contract.call_display import escape_invisible
from api_client.contract.decision import DecisionKind
from api_client.contract.interruption import Interruption
from api_client.contract.tool_sign_in import TOOL_SIGN_IN
from api_client.contract.word_tables import load_word_table
from api_client.interruptions.question import Choice, QuestionKind, QuestionView, translate_text

_WORDS = load_word_table(__file__)
#: Last part of the address at which a person begins, below the address of the question.
BEGIN_PAGE = "tool-sign-in"


class ToolSignInQuestion(QuestionKind):
    """Asks a person to sign in to an MCP server."""

    name = TOOL_SIGN_IN

    def show_question(self, interruption: Interruption, locale: str) -> QuestionView:
        """Return the question as shown to a person. The choice to sign in leads to the sign-in page."""
        names = {name: escape_invisible(str(interruption.asked.get(name, ""))) for name in ("server", "host")}

        def say(word: str) -> str:
            return translate_text(_WORDS, word, locale, **names)

        yes, no = DecisionKind.APPROVE.value, DecisionKind.REJECT.value
        return QuestionView(
            title=say("title"),
            summary=say("summary"),
            choices=(
                Choice(decision=yes, label=say("yes"), said=say("said_yes"), style="main", page=BEGIN_PAGE),
                Choice(decision=no, label=say("no"), said=say("said_no")),
            ),
            remarks=(say("remark"),),
            chat=say("chat"),
            link=say("link"),
            status=say("status"),
            elsewhere=translate_text(_WORDS, "elsewhere", locale).replace("{server}", names["server"]),
        )


KIND = ToolSignInQuestion()
