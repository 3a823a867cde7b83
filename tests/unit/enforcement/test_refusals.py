"""A refusal is told apart from answers: precision first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.enforcement.samples import ADR
from worker.enforcement import Policy, ResponseEnforcer, build_validators, decide, judge
from worker.enforcement.policy import Accept, Fail, Retry
from worker.enforcement.replies.evidence import is_refusal

RULES = build_validators(["step_marker", "adr_structure"], root=Path(), locale="en")
REFUSALS = (
    "I can't help with that request.",
    "I’m sorry, but I can’t assist with that.",
    "I'm sorry, I cannot comply with this request.",
    "Sorry, I won't help with creating malware.\n\nIf you want, I can explain how such programs are found.",
    "I cannot help with that.\n\n<!-- STEP: done -->",
    "Unfortunately, I am not able to provide instructions for this.",
    "I must decline to write this.",
    "I understand that this matters to you, but I can't discuss that topic.",
    "Es tut mir leid, aber dabei kann ich nicht helfen.",
    "Tut mir leid, ich kann dir bei dieser Anfrage nicht weiterhelfen.",
    "Leider kann ich diese Anfrage nicht beantworten.",
    "Dieser Bitte kann ich nicht nachkommen.",
    "Ich muss diese Anfrage ablehnen.",
    "Je suis désolé, mais je ne peux pas vous aider.",
    "Lo siento, pero no puedo ayudarte con eso.",
    "Mi dispiace, ma non posso aiutarti.",
    "Het spijt me, maar ik kan je daar niet mee helpen.",
)
ANSWERS = (
    "I can help with that: the cache lies in Redis.",
    "I can't help but notice that the cache is slow. Use Redis.",
    "I can't find the file `a.py`. Which one do you mean?",
    "I cannot reproduce the error; it passes on my machine.",
    "The service answers \"I can't help with that request.\" when its quota is spent.",
    "You can't help with that request, but an administrator can.",
    "Wir nehmen einen Cache. Dabei kann ich nicht helfen, sagt der alte Dienst.",
    "Ich kann die Datei nicht finden.",
    "Der Kunde kann dabei nicht helfen.",
    "Sorry for the delay. The answer is 42.",
    "Entschuldigung, hier ist die vollständige Antwort: der Cache liegt in Redis.",
    "No.",
    "",
    "I can't help with that request.\n\n- but here is a plan\n- in two steps",
    "I can't help with that request.\n\n## Decision\n\nWe take a cache.",
    "I can't help with that request. " + "We take a cache because the search is slow. " * 20,
    ADR + "\nI can't help with that request.\n",
    "I can't help with that request.\n\n" + ADR,
)  # fmt: skip


@pytest.mark.parametrize("text", REFUSALS)
def test_a_short_refusal_is_one(text: str) -> None:
    assert is_refusal(text, "Write an ADR about invoices.")


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_none_also_where_it_holds_such_a_sentence(text: str) -> None:
    assert not is_refusal(text, "Write an ADR about invoices.")


@pytest.mark.parametrize(
    "prompt", ["Translate: Dabei kann ich nicht helfen.", "Formuliere eine Absage.", "How do I politely decline?"]
)
def test_what_the_question_asked_to_be_put_so_is_none(prompt: str) -> None:
    assert not is_refusal("I can't help with that.", prompt)


def test_a_refusal_is_asked_once_more_and_no_fallback_makes_an_answer_of_it() -> None:
    first = judge([], REFUSALS[0], RULES, {"locale": "en"})
    asked = decide([first], Policy(locale="en"))
    assert isinstance(asked, Retry)
    assert "MODEL_REFUSED" in asked.codes
    second = judge([first], REFUSALS[1], RULES, {"locale": "en"})
    assert decide([first, second]) == Fail(2, "refused")
    assert decide([first], Policy(max_attempts=1)) == Fail(1, "refused")
    tolerant = Policy(default=("warn",))
    assert isinstance(decide([first], tolerant), Retry)
    better = judge([first], "The cache lies in Redis.\n\n<!-- STEP: done -->", RULES, {"locale": "en"})
    assert decide([first, better]) == Accept(2)


def test_a_refusal_to_repair_a_part_leaves_the_answer_before_as_it_was() -> None:
    first = judge([], ADR, RULES, {"locale": "en"})
    second = judge([first], REFUSALS[0], RULES, {"locale": "en"})
    assert second.answer == first.answer
    assert "MODEL_REFUSED" not in {issue.code for issue in second.issues}


async def test_response_enforcer_says_that_the_model_refused() -> None:
    class Refusing:
        runs = 0

        async def run_session(self, **_: Any) -> Any:
            self.runs += 1
            return SimpleNamespace(stdout=REFUSALS[0])

        continue_session = run_session

    runner = Refusing()
    result = await ResponseEnforcer(runner, 5, list(RULES), locale="en").run_with_enforcement("s", "Write an ADR.")
    assert (result.success, result.reason, runner.runs) == (False, "refused", 2)
