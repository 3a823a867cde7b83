"""How a question is shown to those who may answer it, and how their answer is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.call_display import visible
from api_client.contract.decision import DecisionKind
from api_client.contract.errors import BadRequest
from api_client.contract.interruption import Interruption
from api_client.contract.turn import TurnRequest
from api_client.contract.word_tables import table_beside

_WORDS = table_beside(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One possible answer.

    Attributes:
        decision: its word. label: what its button says. said: what who chose it reads; empty: the label.
        style: ``main``, ``danger`` or empty. takes: ``note`` or ``text`` where it needs that; else empty.
    """

    decision: str
    label: str
    said: str = ""
    style: str = ""
    takes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionView:
    """A question as people are shown it.

    Attributes:
        title, summary: a heading, and one line for lists.
        facts: what it is about, name and value, to be shown as they are. remarks: sentences behind them.
        note: what the note of an answer is for.
        chat: the whole question, which the chat of its turn asks as code; empty: that chat says only ``elsewhere``.
        link: the label of the link there. status: one line for a reader of that chat.
        elsewhere: the same where it is answered at ``{where}``.
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

    def choice(self, decision: str) -> Choice:
        """The choice of this word; one that says just the word where there is none, such as of a former question."""
        return next(
            (each for each in self.choices if each.decision == decision), Choice(decision=decision, label=decision)
        )


class QuestionKind:
    """One kind of question; this one shows a question of a kind that is not known here, and takes yes or no."""

    name = ""
    #: Whether an answer of the agent is proposed with it (``turns/proposal.py``).
    proposes = False

    def show(self, asked: Interruption, locale: str) -> QuestionView:
        """Return the question as it is shown in ``de`` or ``en``."""
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in asked.asked.items()}
        facts = tuple((visible(name), visible(text)) for name, text in texts.items())
        return QuestionView(
            title=say(_WORDS, "title", locale),
            summary=asked.reason or asked.kind,
            choices=yes_or_no(locale),
            facts=facts,
            chat="\n".join(f"{name}: {text}".replace("\n", "\n    ") for name, text in facts),
            link=say(_WORDS, "link", locale),
            status=say(_WORDS, "status", locale),
            elsewhere=say(_WORDS, "elsewhere", locale),
        )

    def check(self, asked: Interruption, decision: str, note: str, text: str) -> None:
        """Refuse an answer that does not fit the question. Raises ``BadRequest``: names the field."""
        choices = {each.decision: each for each in self.show(asked, "en").choices}
        if decision not in choices:
            raise BadRequest(f"this is answered by {' or '.join(choices)}, not {decision[:80]!r}", param="decision")
        takes = choices[decision].takes
        if takes == "note" and not note.strip():
            raise BadRequest(f"{decision} needs a note: the agent gets it as its prompt", param="note")
        if takes == "text" and not text.strip():
            raise BadRequest(f"{decision} needs the text of the answer", param="text")
        if takes != "text" and text:
            raise BadRequest(f"{decision} takes no text", param="text")

    def added_runs(self, request: TurnRequest) -> int:
        """Return how many runs beyond those requested this kind may add to a turn before anybody is asked."""
        return 0

    def recap(self, counted: Mapping[str, Any], locale: str) -> str:
        """Return what a chat says below an answer about the questions of its turn, as they were counted."""
        return ""


def yes_or_no(locale: str) -> tuple[Choice, Choice]:
    """Return the two answers to a question of yes or no."""
    yes, no = DecisionKind.APPROVE.value, DecisionKind.REJECT.value
    return (
        Choice(decision=yes, label=say(_WORDS, "yes", locale), said=say(_WORDS, "said_yes", locale), style="main"),
        Choice(decision=no, label=say(_WORDS, "no", locale), said=say(_WORDS, "said_no", locale), style="danger"),
    )


def say(words: Mapping[str, Mapping[str, str]], name: str, locale: str, **values: object) -> str:
    """Return a sentence of a table in the language ``locale``; English where it is not there."""
    found = words[name].get(locale, words[name]["en"])
    return found.format(**values) if values else found
