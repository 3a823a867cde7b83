"""The demo script promises what `turns demo` shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker.runners.scripted import script

GERMAN, ENGLISH = map(script.load, script.BUILT_IN)
RULES = script.built_in()
MESSAGES = {rule.name: rule.when for rule in GERMAN if rule.when}


def steps(name: str, attempt: int = 1, delivery: int = 1) -> tuple[script.Step, ...]:
    return script.steps_for(RULES, MESSAGES.get(name, "Und was ist das?"), attempt, delivery)


def text(name: str, attempt: int = 1, delivery: int = 1) -> str:
    return "".join(fields["text"] for step, fields in steps(name, attempt, delivery) if step == "say")


def seconds(played: tuple[script.Step, ...]) -> float:
    return sum(fields.get("seconds", 0.0) for _, fields in played)


def test_each_message_reaches_its_own_rule() -> None:
    for rule in (*GERMAN, *ENGLISH):
        if rule.when:
            assert next(each for each in RULES if each.matches(rule.when)) is rule


def test_the_question_of_the_readme_is_rejected_once() -> None:
    [asked] = re.findall(r'turns submit --watch "(.+)"', (Path(__file__).parents[3] / "README.md").read_text())
    played = next(each for each in RULES if each.matches(asked))
    assert played.when
    assert "<!-- STEP:" not in "".join(fields["text"] for step, fields in played.lists[0] if step == "say")


def test_both_languages_play_the_same() -> None:
    assert [rule.name for rule in GERMAN] == [rule.name for rule in ENGLISH]


@pytest.mark.parametrize(
    ("message", "language"),
    [
        ("How should we deliver webhooks?", ENGLISH),
        ("What was it, and why do agents die?", ENGLISH),
        ("Hello", ENGLISH),
        ("Wie sollen wir Webhooks zustellen?", GERMAN),
        ("Was ist das?", GERMAN),
        ("Hallo", GERMAN),
    ],
)
def test_any_other_message_is_answered_in_its_language(message: str, language: tuple[script.ScriptRule, ...]) -> None:
    assert next(rule for rule in RULES if rule.matches(message)) is language[-1]


@pytest.mark.parametrize("name", ["good", "anything_else"])
def test_a_good_answer_carries_its_marker(name: str) -> None:
    assert text(name).endswith("<!-- STEP: what -->\n")


def test_the_marker_comes_after_feedback_only_and_alone() -> None:
    assert "STEP" not in text("marker_after_feedback")
    assert text("marker_after_feedback", 2) == "<!-- STEP: why -->"


def test_one_agent_dies_in_mid_answer_at_its_first_attempt_only() -> None:
    assert steps("dies_in_mid_answer")[-1] == ("die", {})
    assert text("dies_in_mid_answer", 2).endswith("<!-- STEP: constraints -->\n")


def test_one_answer_never_has_a_marker_and_always_ends_with_a_question() -> None:
    texts = [text("never_a_marker", attempt) for attempt in (1, 2, 3)]
    assert all("STEP" not in answer and answer.endswith("?\n") for answer in texts)
    assert len(set(texts)) == 3


def test_one_adr_never_gets_its_sections() -> None:
    for attempt in (1, 2, 3):
        answer = text("adr_never_complete", attempt)
        assert answer.startswith("---\nadr_id:")
        assert "STEP: generate" in answer
        assert "## Entscheidung" not in answer
        assert "## Akzeptanzkriterien" not in answer


def test_the_answer_during_which_the_worker_dies_is_slow_once() -> None:
    assert 4 <= seconds(steps("worker_killed")) <= 5
    assert seconds(steps("worker_killed", delivery=2)) < 2
    assert text("worker_killed") == text("worker_killed", delivery=2)


def test_one_adr_lacks_one_section_which_then_comes_alone() -> None:
    assert "## Akzeptanzkriterien" not in text("adr_one_section_missing")
    assert text("adr_one_section_missing", 2).startswith("## Akzeptanzkriterien\n")
    assert "## Entscheidung" in text("adr_one_section_missing", 3)
    assert text("adr_one_section_missing", 2) in text("adr_one_section_missing", 3)


def test_every_other_answer_takes_one_to_three_seconds() -> None:
    for rule in RULES:
        for number, played in enumerate(rule.lists):
            slow = rule.name == "worker_killed" and number == 0
            short = (rule.name, number) == ("marker_after_feedback", 1)  # only the marker
            assert slow or short or 0.9 <= seconds(played) <= 3, rule.name
