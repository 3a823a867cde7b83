"""A model in a loop is seen, in any language and unit of repetition; ordinary documents are not."""

from pathlib import Path

import pytest

from worker.enforcement import Accept, decide_next, validate_attempt
from worker.enforcement.documents.repetition import measure_repetition
from worker.enforcement.rules import RepetitionRule

DOCS = sorted((Path(__file__).parents[3] / "docs").rglob("*.md"))
SENTENCE = "Der Relay liest die Tabelle und sagt dem Arbeiter, was neu ist. "
WORDS = " ".join(f"wort{n}" for n in range(1200))
LOOPS = {
    "one word": "ok " * 20_000,
    "one word in lines": "court\n" * 3_000,
    "a sentence": "Kontext: die Suche ist langsam.\n\n" + SENTENCE * 40,
    "a paragraph": "# Titel\n\n" + (SENTENCE * 2 + "Danach wartet er auf das Ende.\n\n") * 12,
    "a list item": "Schritte:\n\n" + "- Prüfe die Eingabe und melde jeden Fehler sofort an den Betrieb\n" * 30,
    "Chinese": "我们使用缓存来提高搜索速度。" * 30,
    "behind a long good beginning": f"{WORDS}\n\n{SENTENCE * 40}",
    "in the middle": f"{WORDS}\n\n{SENTENCE * 40}\n\n{WORDS.replace('wort', 'ende')}",
    "items that count on": "".join(f"{n}. Der Relay liest die Tabelle und sagt, was neu ist.\n" for n in range(60)),
    "code without an end": "```python\n" + "x = berechne(x, y, z, a, b, c)\n" * 60,
    "no blanks": "abc" * 2000,
    "emoji": "\U0001f642" * 800,
    "two sentences": (SENTENCE + "Der Arbeiter prüft es dann. ") * 25,
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


def rows(count: int, row: str) -> str:
    return "".join(row.format(n=n, word=f"wort{n * 7919 % 997}") for n in range(count))


GOOD = {
    "tests in a table": "| test | result |\n|---|---|\n" + rows(150, "| test_{word} | passed | 0.{n} |\n"),
    "features in a table": rows(120, "| {word} | yes | no | yes | yes | no | yes |\n"),
    "numbers in a table": rows(150, "| {n} | 1{n} | 2{n} | 0.{n} |\n"),
    "open boxes": rows(80, "- [ ] Die Prüfung der Datei {word} ist fertig und von zwei Personen gelesen\n"),
    "settings": rows(100, "- `HELIX_{word}`: so lange wartet der Arbeiter auf {word}, in Sekunden (Vorgabe {n})\n"),
    "code": "```python\n" + rows(200, "x{n} = berechne(x, y, z, a, b, c)\n") + "```\n",
    "the same code": "```text\n" + "0 0 0 0 0 0 0 0\n" * 200 + "```\n",
    "before and after": f"{WORDS}\n\nNachher:\n\n{WORDS}",
    "a song": "\n\n".join(
        rows(8, f"Zeile {{word}} vom Lied {verse} und von {{n}} Dingen\n") + "Refrain: wir singen alle Tage.\n" * 2
        for verse in range(9)
    ),
    "a poem": "Der Mond ist aufgegangen,\ndie goldnen Sternlein prangen\nam Himmel hell und klar;\n" * 4,
    "a log": rows(150, "12:{n} INFO worker {word} hat den Auftrag {n} nach 0.{n} s beendet\n"),
    "questions and answers": rows(60, "**Frage {n}: Was tut {word}?**\n\n{word} schreibt {n} Zeilen und endet.\n\n"),
    "paragraphs of a law": rows(60, "({n}) Für {word} gilt Absatz {n} mit der Maßgabe, dass {word} zu prüfen ist.\n"),
}  # fmt: skip


@pytest.mark.parametrize("text", GOOD.values(), ids=list(GOOD))
def test_texts_of_like_lines_are_no_loops(text: str) -> None:
    assert RepetitionRule().validate(text, {}) == []
    assert validate_attempt([], text, []).issues == ()


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
