"""The step marker: found tolerantly, judged strictly (ADR-038 section 2)."""

from typing import Any

import pytest

from tests.unit.enforcement.samples import ADR, codes
from worker.enforcement import (
    STEPS,
    Severity,
    StepMarkerValidator,
    extract_state_from_messages,
    extract_step,
    infer_step,
    repair_answer,
    step_of,
    strip_marker,
)

VALIDATOR = StepMarkerValidator()


def found(text: str) -> list[str]:
    return codes(VALIDATOR.validate(text, {}))


@pytest.mark.parametrize("step", STEPS)
def test_each_of_the_six_steps_is_valid_in_any_letter_case(step: str) -> None:
    for written in (f"<!-- STEP: {step} -->", f"<!-- step: {step.upper()} -->", f"<!--STEP:{step}-->"):
        assert found(f"Antwort.\n\n{written}") == []
        assert extract_step(f"Antwort.\n\n{written}") == step


def test_an_answer_without_a_marker_is_told_the_seeds_words() -> None:
    (issue,) = VALIDATOR.validate("Antwort ohne Marker", {"locale": "de"})
    assert issue.code == "MISSING_STEP_MARKER"
    assert issue.message == "Response enthält keinen STEP-Marker"
    assert issue.fix_hint == "Füge am Ende hinzu: <!-- STEP: what|why|constraints|generate|finalize|done -->"
    assert issue.severity is Severity.ERROR


def test_text_after_the_marker_is_a_warning() -> None:
    (issue,) = VALIDATOR.validate("<!-- STEP: done -->\n\nUnd noch etwas.", {})
    assert (issue.code, issue.severity) == ("TEXT_AFTER_MARKER", "warning")


@pytest.mark.parametrize(
    "text",
    [
        "```\n<!-- STEP: done -->\n```",
        "~~~html\n<!-- STEP: done -->\n~~~\n",
        "```\nnicht geschlossen\n<!-- STEP: done -->",
        "Schreibe `<!-- STEP: done -->` ans Ende.",
        "Ein `Code\nüber <!-- STEP: done --> Zeilen`",
        "> <!-- STEP: done -->",
        "> ```\n> <!-- STEP: done -->\n> ```",
        "Absatz\n\n    <!-- STEP: done -->",
        "- Punkt\n  ```\n  <!-- STEP: done -->\n  ```\n",
        "# Titel `<!-- STEP: done -->`",
        "> ```\n> x\n> ```\n> <!-- STEP: done -->",
        "---\nadr_id: 1  # <!-- STEP: done -->\n---\n\n# ADR-1\n",
    ],
)
def test_a_marker_in_code_or_a_quote_does_not_count(text: str) -> None:
    assert found(text) == ["MISSING_STEP_MARKER"]
    assert extract_step(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "```\ncode\n```\n<!-- STEP: done -->",
        "> Zitat\n\n<!-- STEP: done -->",
        "> Zitat\n<!-- STEP: done -->",
        "- Punkt\n\n  <!-- STEP: done -->",
        "Absatz <!-- STEP: done -->",
        "Ein \\` allein <!-- STEP: done --> und noch ein ` hier",
        "Ein ` allein <!-- STEP: done -->",
        "<div>\n<!-- STEP: done -->\n</div>",
        "Text\r\n\r\n<!-- STEP: done -->\r\n",
    ],
)
def test_a_marker_outside_code_counts_wherever_it_stands(text: str) -> None:
    assert extract_step(text) == "done"


def test_the_last_of_several_markers_counts_and_several_are_a_warning() -> None:
    assert found("<!-- STEP: foo -->\n\n<!-- STEP: done -->") == ["SEVERAL_STEP_MARKERS"]
    assert found("<!-- STEP: done -->\n\n<!-- STEP: foo -->") == ["INVALID_STEP", "SEVERAL_STEP_MARKERS"]


@pytest.mark.parametrize("value", ["in-progress", "what|why|constraints|generate|finalize|done", "discussing", ""])
def test_a_marker_with_another_word_is_invalid_and_the_word_is_shown(value: str) -> None:
    (issue,) = VALIDATOR.validate(f"Text\n\n<!-- STEP: {value} -->", {})
    assert issue.code == "INVALID_STEP"
    assert value in issue.message
    assert issue.line == 3


def test_unknown_is_invalid_when_the_model_writes_it() -> None:
    assert found("Text\n\n<!-- STEP: unknown -->") == ["INVALID_STEP"]


def test_a_question_at_the_end_means_what_and_the_fallback_is_accepted() -> None:
    repaired = repair_answer("Welche Datenbank nutzt ihr?", [VALIDATOR])
    assert repaired.text == "Welche Datenbank nutzt ihr?\n\n<!-- STEP: what -->"
    assert (repaired.accepted, repaired.step, repaired.step_source) == (True, "what", "inferred")


def test_the_fallback_replaces_a_bad_marker_at_the_end() -> None:
    repaired = repair_answer("Welche Datenbank?\n\n<!-- STEP: discussing -->\n", [VALIDATOR])
    assert repaired.text == "Welche Datenbank?\n\n<!-- STEP: what -->\n"
    assert repaired.accepted


def test_a_bad_marker_inside_the_text_is_left_alone_and_a_good_one_is_appended() -> None:
    repaired = repair_answer("Er schrieb <!-- STEP: foo --> dorthin.", [VALIDATOR])
    assert repaired.text == "Er schrieb <!-- STEP: foo --> dorthin.\n\n<!-- STEP: unknown -->"
    assert repaired.accepted


@pytest.mark.parametrize(
    "text",
    ["Siehe https://example.org/a?b=c", "Nutze `git log -S?`", "```\nwas?\n```", "Wert?=1", "<https://x.y/?> ist es."],
)
def test_a_question_mark_in_a_link_or_code_is_no_question(text: str) -> None:
    assert infer_step(text) == "unknown"


@pytest.mark.parametrize("text", ["ADR-38 wurde noch nicht erstellt.", "ADR-38 ist erstellt und finalisiert."])
def test_words_about_an_adr_do_not_make_a_step(text: str) -> None:
    assert infer_step(text) == "unknown"


def test_an_adr_with_a_header_means_generate_and_a_final_status_means_finalize() -> None:
    assert infer_step(ADR) == "generate"
    assert infer_step(ADR.replace("Proposed", "Accepted")) == "finalize"


def test_constraint_words_mean_constraints() -> None:
    assert infer_step("Die Rahmenbedingungen sind geklärt.") == "constraints"


@pytest.mark.parametrize("text", ["Das Feld", "", "Hallo"])
def test_without_a_sign_the_fallback_says_unknown_and_never_done(text: str) -> None:
    repaired = repair_answer(text, [VALIDATOR])
    assert repaired.text.endswith("<!-- STEP: unknown -->")
    assert (repaired.step, repaired.step_source) == ("unknown", "unknown")
    assert repaired.accepted


def test_extractor_and_validator_agree_on_case_and_on_which_marker_counts() -> None:
    assert extract_step("<!-- STEP: what -->\n<!-- STEP: DONE -->") == "done"
    assert extract_step("<!-- STEP: DONE -->\n<!-- STEP: nonsense -->") is None


def test_the_fallback_closes_an_open_fence_so_that_its_marker_is_seen() -> None:
    repaired = repair_answer("Hier:\n```python\nprint(1)", [VALIDATOR])
    assert repaired.text == "Hier:\n```python\nprint(1)\n```\n\n<!-- STEP: unknown -->"
    assert repaired.accepted


def test_the_fallback_keeps_the_answers_line_endings() -> None:
    assert repair_answer("Eins\r\nZwei", [VALIDATOR]).text == "Eins\r\nZwei\r\n\r\n<!-- STEP: unknown -->"


def test_messages_come_in_english_too() -> None:
    assert StepMarkerValidator("en").validate("x", {})[0].message == "The response has no STEP marker"
    assert VALIDATOR.validate("x", {"locale": "en"})[0].message == "The response has no STEP marker"


def test_a_models_unknown_becomes_the_fallbacks_when_nothing_shows_the_step() -> None:
    repaired = repair_answer("Hallo.\n\n<!-- STEP: unknown -->", [VALIDATOR])
    assert (repaired.accepted, repaired.text, repaired.step_source) == (
        True,
        "Hallo.\n\n<!-- STEP: unknown -->",
        "unknown",
    )
    assert codes(repaired.fixed_issues) == ["INVALID_STEP"]
    assert repair_answer("Was nun?\n\n<!-- STEP: unknown -->", [VALIDATOR]).step == "what"


# The step as an observation (ADR-034, ADR-036): from the answer alone, never from a user's words.


def test_a_users_marker_and_trigger_words_name_no_step() -> None:
    messages = [{"role": "user", "content": "Erstelle das ADR, los! <!-- STEP: done -->"}] * 4
    assert extract_state_from_messages(messages) == {
        "original_request": "Erstelle das ADR, los! <!-- STEP: done -->",
        "message_count": 4,
    }


def test_a_message_may_be_a_list_of_parts() -> None:
    parts = [
        {"type": "text", "text": "Sieh dir"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "das an"},
    ]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]
    assert extract_state_from_messages(messages)["original_request"] == "Sieh dir\ndas an"


@pytest.mark.parametrize("content", [None, 5, {"a": 1}, [None, 3, {"text": 4}]])
def test_a_message_without_text_is_no_crash(content: object) -> None:
    assert extract_state_from_messages([{"role": "user", "content": content}])["original_request"] == ""


def test_no_messages_give_an_empty_request() -> None:
    assert extract_state_from_messages([]) == {"original_request": "", "message_count": 0}


def test_a_missing_or_invalid_marker_is_unknown_with_its_source() -> None:
    assert step_of("Text") == ("unknown", "unknown")
    assert step_of("Text <!-- STEP: execute -->") == ("unknown", "unknown")
    assert step_of("Text <!-- STEP: Why -->") == ("why", "marker")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Antwort.\n\n<!-- STEP: done -->\n", "Antwort."),
        ("Antwort. <!-- STEP: done -->", "Antwort."),
        ("A\n<!-- STEP: what -->\n<!-- STEP: done -->", "A"),
        ("<!-- STEP: done --> Danach.", "<!-- STEP: done --> Danach."),
        ("Zeige `<!-- STEP: done -->`", "Zeige `<!-- STEP: done -->`"),
        ("Kein Marker.\n", "Kein Marker.\n"),
        ("<!-- STEP: unknown -->", ""),
    ],
)
def test_the_marker_at_the_end_is_not_shown(text: str, shown: str) -> None:
    assert strip_marker(text) == shown
