"""Presents questions to the persons who may answer, and checks the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.call_display import escape_invisible
from api_client.contract.decision import DecisionKind
from api_client.contract.errors import BadRequest
from api_client.contract.interruption import Interruption
from api_client.contract.step_marker import PATTERN
from api_client.contract.turn import TurnRequest
from api_client.contract.visible_text import has_visible_text
from api_client.contract.word_tables import load_word_table

_WORDS = load_word_table(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An answer that a person can choose for a question.

    ``label`` is the text of its button, ``said`` the confirmation afterwards. ``style`` is ``main``, ``danger`` or
    empty. ``takes`` is ``note`` or ``text`` if the answer needs one. ``page`` is where its button leads, below the
    question's address, if something comes before the answer.
    """

    decision: str
    label: str
    said: str = ""
    style: str = ""
    takes: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionView:
    """A question as shown to people, with its text and choices.

    ``facts`` are shown verbatim, ``remarks`` follow them. ``chat`` is the whole question for the chat; if empty, the
    chat shows ``elsewhere``, which says that the question is answered at ``{where}``. ``status`` is one line.
    """

    title: str
    summary: str
    choices: tuple[Choice, ...]
    facts: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    note: str = ""
    chat: str = ""
    link: str = ""
    status: str = ""
    elsewhere: str = ""

    @property
    def direct_choices(self) -> tuple[Choice, ...]:
        """Return the choices that need no page before the answer."""
        return tuple(each for each in self.choices if not each.page)

    def find_choice(self, decision: str) -> Choice:
        """Return the choice for a decision, or a plain choice if the question does not offer this decision."""
        return next(
            (each for each in self.choices if each.decision == decision), Choice(decision=decision, label=decision)
        )


class QuestionKind:
    """Shows questions of one kind and checks their answers. The base class asks yes-or-no questions."""

    name = ""
    #: Whether the question proposes an answer of the agent (``turns/proposal.py``).
    proposes = False

    def show_question(self, interruption: Interruption, locale: str) -> QuestionView:
        """Return the question as shown to a person, in German or English."""
        texts = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in interruption.asked.items()
        }
        facts = tuple((escape_invisible(name), escape_invisible(text)) for name, text in texts.items())
        return QuestionView(
            title=translate_text(_WORDS, "title", locale),
            summary=interruption.reason or interruption.kind,
            choices=yes_no_choices(locale),
            facts=facts,
            chat="\n".join(f"{name}: {text}".replace("\n", "\n    ") for name, text in facts),
            link=translate_text(_WORDS, "link", locale),
            status=translate_text(_WORDS, "status", locale),
            elsewhere=translate_text(_WORDS, "elsewhere", locale),
        )

    def check_answer(self, interruption: Interruption, decision: str, note: str, text: str) -> None:
        """Check that a decision fits the question. Raises ``BadRequest``, which names the invalid field."""
        choices = {each.decision: each for each in self.show_question(interruption, "en").choices}
        if decision not in choices:
            raise BadRequest(f"this is answered by {' or '.join(choices)}, not {decision[:80]!r}", param="decision")
        takes = choices[decision].takes
        if takes == "note" and not has_visible_text(note):
            raise BadRequest(f"{decision} needs a note: the agent gets it as its prompt", param="note")
        if takes == "text" and not has_visible_text(PATTERN.sub("", text)):
            raise BadRequest(f"{decision} needs the text of the answer", param="text")
        if takes != "text" and text:
            raise BadRequest(f"{decision} takes no text", param="text")

    def count_added_runs(self, request: TurnRequest) -> int:
        """Return how many additional agent runs this kind of question may cause before a person is asked."""
        return 0

    def summarise_questions(self, counted: Mapping[str, Any], locale: str) -> str:
        """Return the sentence that a chat shows about a turn's questions of this kind, or an empty string."""
        return ""


def yes_no_choices(locale: str) -> tuple[Choice, Choice]:
    """Return the two choices of a yes-or-no question, in the language of ``locale``."""
    yes, no = DecisionKind.APPROVE.value, DecisionKind.REJECT.value
    return (
        Choice(
            decision=yes,
            label=translate_text(_WORDS, "yes", locale),
            said=translate_text(_WORDS, "said_yes", locale),
            style="main",
        ),
        Choice(
            decision=no,
            label=translate_text(_WORDS, "no", locale),
            said=translate_text(_WORDS, "said_no", locale),
            style="danger",
        ),
    )


def translate_text(words: Mapping[str, Mapping[str, str]], name: str, locale: str, **values: object) -> str:
    """Return the text named ``name`` in the language of ``locale``, or in English without a translation."""
    found = words[name].get(locale, words[name]["en"])
    return found.format(**values) if values else found
