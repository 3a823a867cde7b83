"""A model in a loop is seen, in any language and unit of repetition; ordinary documents are not."""

from pathlib import Path

import pytest

from worker.enforcement import Accept, decide_next, validate_attempt
from worker.enforcement.documents.repetition import measure_repetition
from worker.enforcement.rules import RepetitionRule

DOCS = sorted((Path(__file__).parents[3] / "docs").rglob("*.md"))
SENTENCE = "Der Relay liest die Tabelle und sagt dem Arbeiter, was neu ist. "
LOOPS = {
    "one word": "ok " * 20_000,
    "one word in lines": "court\n" * 3_000,
    "a sentence": "Kontext: die Suche ist langsam.\n\n" + SENTENCE * 40,
    "a paragraph": "# Titel\n\n" + (SENTENCE * 2 + "Danach wartet er auf das Ende.\n\n") * 12,
    "a list item": "Schritte:\n\n" + "- Prüfe die Eingabe und melde jeden Fehler sofort an den Betrieb\n" * 30,
    "Chinese": "我们使用缓存来提高搜索速度。" * 30,
    "behind a good beginning": " ".join(f"wort{n}" for n in range(150)) + "\n\n" + SENTENCE * 60,
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=list(LOOPS))
def test_a_loop_is_an_error_of_the_rule_and_a_warning_without_it(text: str) -> None:
    [issue] = RepetitionRule().validate(text, {})
    assert (issue.code, issue.is_error) == ("ANSWER_REPEATS", True)
    attempt = validate_attempt([], text, [])
    assert [(one.code, one.is_error) for one in attempt.issues] == [("REPEATED_TEXT", False)]
    assert decide_next([attempt]) == Accept(1)
    assert [one.code for one in validate_attempt([], text, [RepetitionRule()]).issues] == ["ANSWER_REPEATS"]


@pytest.mark.parametrize("path", DOCS, ids=[path.stem for path in DOCS])
def test_an_ordinary_document_is_no_loop(path: Path) -> None:
    assert measure_repetition(path.read_text()).share < 0.3 or path.stem == "repetition"


def test_code_and_short_answers_are_not_looked_at() -> None:
    assert RepetitionRule().validate("```text\n" + "0 1 0 1 0 1 0 1\n" * 200 + "```\n", {}) == []
    assert RepetitionRule().validate("ja " * 50, {}) == []


def test_the_line_is_that_where_the_longest_repetition_begins() -> None:
    text = "Anfang der Antwort, die noch etwas sagt.\n\n" + (SENTENCE.strip() + "\n") * 30
    assert measure_repetition(text).line == 4


def test_time_grows_as_the_text_does() -> None:
    assert measure_repetition("a b c d e f g h i j " * 200_000).share > 0.99
