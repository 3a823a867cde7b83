"""The question of an escalation: accept, edit, repeat or reject the best answer of a failed turn."""

from __future__ import annotations

from api_client.contract.decision import DecisionKind
from api_client.contract.errors import BadRequest
from api_client.contract.escalation import Escalation
from api_client.contract.interruption import Interruption
from api_client.contract.turn import TurnRequest
from api_client.contract.word_tables import load_word_table
from api_client.interruptions.question import Choice, QuestionKind, QuestionView, translate_text

VERDICT = "verdict"
_WORDS = load_word_table(__file__)


class VerdictQuestion(QuestionKind):
    """Asks a person to accept, edit, repeat or reject the best answer of a failed turn."""

    name = VERDICT
    proposes = True

    def show_question(self, interruption: Interruption, locale: str) -> QuestionView:
        """Return the question with its choices, as shown to a person next to the proposed answer."""
        in_text = interruption.asked.get("in_text", True)
        edit = translate_text(_WORDS, "edit" if in_text else "edit_phase", locale)
        return QuestionView(
            title=translate_text(_WORDS, "title", locale),
            summary="",
            choices=(
                _make_choice(DecisionKind.APPROVE, locale, style="main"),
                Choice(decision=DecisionKind.EDIT.value, label=edit, takes="text" if in_text else ""),
                _make_choice(DecisionKind.RETRY, locale, takes="note"),
                _make_choice(DecisionKind.REJECT, locale, style="danger"),
            ),
            remarks=(translate_text(_WORDS, "remark", locale),),
            note=translate_text(_WORDS, "note", locale),
            elsewhere=translate_text(_WORDS, "elsewhere", locale),
        )

    def check_answer(self, interruption: Interruption, decision: str, note: str, text: str) -> None:
        """Check that a decision fits the question. Raises ``BadRequest``, which names the invalid field."""
        if decision == DecisionKind.EDIT and not interruption.asked.get("in_text", True) and text:
            raise BadRequest("such a result is edited in its files, not by a text", param="text")
        super().check_answer(interruption, decision, note, text)

    def count_added_runs(self, request: TurnRequest) -> int:
        """Return how many runs of another model an escalation may make before it asks a person."""
        escalation = Escalation.from_request(request)
        return escalation.runs if escalation and escalation.model else 0


KIND = VerdictQuestion()


def _make_choice(kind: DecisionKind, locale: str, *, style: str = "", takes: str = "") -> Choice:
    return Choice(decision=kind.value, label=translate_text(_WORDS, kind.value, locale), style=style, takes=takes)
