"""What is no part of a document never becomes one, and the section that was asked for is taken in the form it has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.bench.economy.replies.corpus import drafts, not_the_part, right_replies, wrong_replies
from tests.unit.enforcement.samples import ADR, HEADER
from worker.enforcement import Accept, Retry, build_validators, decide, judge
from worker.enforcement.replies.evidence import is_section, is_talk

DRAFTS = {draft.name: draft for draft in drafts()}
RULES = build_validators(("step_marker", "adr_structure"), root=Path())
MARKER = "<!-- STEP: generate -->"


def test_the_corpus_holds_four_hundred_replies_of_nine_kinds_in_twelve_languages() -> None:
    texts = list(not_the_part())
    assert len({text for _, _, _, text in texts}) >= 400
    assert len({kind for _, kind, _, _ in texts}) >= 8
    assert len({lang for _, _, lang, _ in texts} - {"-"}) >= 12


@pytest.mark.parametrize("name", ["cache de", "madr en", "plan en", "stockage fr"])
def test_nothing_passes_or_enters_that_is_no_section(name: str) -> None:
    assert [(t.reply, t.bad) for t in wrong_replies([DRAFTS[name]]) if t.bad] == []


def test_a_section_is_taken_in_98_of_100_forms_and_nothing_else_changes() -> None:
    trials = list(right_replies(list(DRAFTS.values())))
    bad = Counter(trial.kind for trial in trials if trial.bad)
    assert len(trials) >= 400
    assert bad.total() <= 0.02 * len(trials), bad


@pytest.mark.parametrize(
    "text",
    [
        "Request timed out.",
        "Du hast recht, das fehlte.",
        "Sorry, I cannot do that.",
        "API Error: 500",
        "Désolé, je ne peux pas.",
    ],
)
def test_talk_is_about_the_conversation_or_the_service_alone(text: str) -> None:
    assert is_talk(text, ADR)


@pytest.mark.parametrize("text", ["Wir nehmen Redis.", "Die Suche liest den Index.", "A cache, sixty seconds."])
def test_what_speaks_about_the_subject_is_no_talk(text: str) -> None:
    assert not is_talk(text, ADR)


def test_without_a_heading_a_text_needs_words_of_its_document_and_below_one_it_does_not() -> None:
    assert not is_section("Paris liegt an der Seine.", ADR, "Entscheidung", headed=False)
    assert is_section("Die Suche bekommt einen Speicher.", ADR, "Entscheidung", headed=False)
    assert is_section("Paris liegt an der Seine.", ADR, "Entscheidung", headed=True)


def test_a_second_section_with_the_same_text_renames_the_first_one() -> None:
    first = ADR.replace("## Kontext", "## Ausgangslage") + f"\n{MARKER}\n"
    history = [judge([], first, RULES)]
    history.append(judge(history, "## Kontext\n\nDie Suche ist langsam.", RULES))
    assert decide(history) == Accept(2)
    assert history[-1].answer == ADR + f"\n{MARKER}\n"


@pytest.mark.parametrize("title", ["Kontext und Optionen", "Context and Scope"])
def test_a_title_that_names_a_section_and_more_is_that_section(title: str) -> None:
    assert decide([judge([], ADR.replace("## Kontext", f"## {title}") + MARKER, RULES)]) == Accept(1)


def test_what_was_put_in_and_left_out_is_on_the_attempt() -> None:
    first = ADR.replace("## Entscheidung\n\nWir nehmen einen Cache.\n\n", "") + f"\n{MARKER}\n"
    history = [judge([], first, RULES)]
    reply = "Hier ist sie:\n\n## Entscheidung\n\nWir nehmen Redis.\n\nSag Bescheid, wenn noch etwas fehlt."
    history.append(judge(history, reply, RULES))
    put, *left = history[-1].edits
    assert put == "Put in: the section '## Entscheidung' (17 characters)"
    assert "Hier ist sie:" in left[0]
    assert "Sag Bescheid" in left[1]
    assert judge([], reply, RULES).edits == ()


def test_the_feedback_asks_for_the_heading_as_the_first_line() -> None:
    decision = decide([judge([], HEADER + "\n# ADR-040: Ein Cache\n\n## Kontext\n\nx\n", RULES)])
    assert isinstance(decision, Retry)
    assert "The first line of your message is the heading `## Entscheidung`" in decision.feedback
