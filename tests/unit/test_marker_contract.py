"""One marker for worker and relay: how it looks, which spans an answer has, and what readers see because of them."""

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api_client.contract import step_marker as contract
from api_client.contract.step_marker import (
    BEGINNING,
    PATTERN,
    find_marker_spans,
    find_markers,
    read_spans,
    strip_all_markers,
    strip_own_marker,
)
from tests.growth import assert_linear
from worker.enforcement.documents.step import marker_spans, step_of, strip_marker

MARKERS = ["<!-- STEP: what -->", "<!-- step:x -->", "<!--\nSTEP: done\n-->"]
BLOCKS = ["\n\n", "```\n", "~~~\n", "    ", "> ", "- ", "---\n", "adr_id: 1\n"]
fragments = st.sampled_from([*"<!-:`> \n\t", "<!--", "STEP", "-->", "Wort ", "\r\n", *BLOCKS, *MARKERS])
places = st.integers(-3, 60)
texts = st.lists(fragments | st.text(max_size=3), max_size=25).map("".join)


def answer(text: str) -> str:
    return strip_own_marker(text, marker_spans(text))


def page(text: str) -> str:
    return strip_all_markers(text, marker_spans(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Antwort\n\n<!-- STEP: what -->", "Antwort"),
        ("Antwort <!-- STEP: what -->", "Antwort"),
        ("Antwort\r\n<!-- step:done -->\r\n", "Antwort"),
        ("a\n<!-- STEP: what -->\n<!-- STEP: why -->", "a"),
        ("kein Marker  \n\n", "kein Marker  \n\n"),
        ("<!-- Kommentar -->", "<!-- Kommentar -->"),
        ("Schreibe `x` <!-- STEP: what -->", "Schreibe `x`"),
        ("```x``` ist Code\n<!-- STEP: what -->", "```x``` ist Code"),
        ("Antwort\n<!--\nSTEP: what\n-->", "Antwort"),
        ("", ""),
        ("<!-- STEP: what -->", ""),
    ],
)
def test_an_answer_is_shown_without_its_own_marker(text: str, shown: str) -> None:
    assert answer(text) == page(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Beispiel:\n\n    <!-- STEP: what -->\n\nEnde",
        "> Zitat <!-- STEP: what -->\n\nEnde",
        "> Zitat\n> <!-- STEP: unknown -->",
        "```\n<!-- STEP: what -->\n```",
        "~~~~md\n```\n<!-- STEP: what -->\n~~~~",
        "Schreibe `<!-- STEP: what -->` ans Ende.",
        "- Punkt\n\n      <!-- STEP: what -->\n\nEnde",
        "Setze ``x\ny <!-- STEP: what -->\nz`` ans Ende",
    ],
)
@pytest.mark.parametrize("own", ["", "\n\n<!-- STEP: done -->", "\n\n<!-- STEP: done -->\n"])
def test_markers_in_code_and_quotes_are_text(text: str, own: str) -> None:
    assert answer(text + own) == page(text + own) == strip_marker(text + own) == text
    assert step_of(text + own)[0] == ("done" if own else "unknown")


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("<!-- STEP: what -->\nAntwort", "Antwort"),
        ("a\n<!-- STEP: what -->\nb\n", "a\nb\n"),
        ("a\n\n<!-- STEP: what -->\r\nb <!-- STEP: why --> c", "a\n\nb  c"),
        ("a <!--STEP:what--> b", "a  b"),
        (
            "a\n<!-- STEP: what -->\n    \n> <!-- STEP: x -->\n\nb\n<!-- STEP: done -->",
            "a\n    \n> <!-- STEP: x -->\n\nb",
        ),
    ],
)
def test_a_marker_in_the_middle_stays_in_the_answer_and_no_page_draws_it(text: str, drawn: str) -> None:
    assert answer(text) == strip_marker(text)
    assert text.startswith(answer(text))
    assert answer(text).count("STEP") > drawn.count("STEP")
    assert page(text) == drawn


@settings(max_examples=500, deadline=None)
@example("a\n<!-- STEP: what -->\n<!-- STEP: why -->\n")
@given(texts)
def test_the_answer_is_the_text_up_to_its_marker_and_a_page_only_lacks_markers_and_blanks(text: str) -> None:
    spans = marker_spans(text)
    told = [list(span) for span in spans]
    assert read_spans(told, text) == spans
    shown = answer(text)
    assert text.startswith(shown)
    assert not PATTERN.sub("", text[len(shown) :]).strip()
    counting = PATTERN.sub("", page(text)).split()
    assert counting == PATTERN.sub("", shown).split()
    assert strip_all_markers(text, ()) == strip_own_marker(text, ()) == text


@settings(max_examples=300, deadline=None)
@given(
    texts,
    st.lists(st.tuples(st.integers(-3, 60), st.integers(-3, 60)).map(list), max_size=4) | st.none() | st.just("x"),
)
def test_whatever_a_record_says_only_markers_and_blanks_are_ever_cut(text: str, told: object) -> None:
    spans = read_spans(told, text)
    for shown in (strip_own_marker(text, spans), strip_all_markers(text, spans)):
        assert PATTERN.sub("", shown).split() == PATTERN.sub("", text).split()


def test_a_record_of_an_older_version_shows_no_marker_at_its_end() -> None:
    text = "a <!-- STEP: what --> b\n\n<!-- STEP: done -->\n"
    assert strip_own_marker(text, read_spans(None, text)) == "a <!-- STEP: what --> b"
    assert read_spans(None, "a <!-- STEP: what --> b") == read_spans(None, "a") == ()


def test_the_spans_of_a_text_full_of_markers_stay_few_and_its_end_is_clean() -> None:
    text = "a <!-- STEP: what --> " * 5_000 + "\n" + "<!-- STEP: done -->" * 5_000
    spans = marker_spans(text)
    assert len(spans) == contract.MAX_SPANS + 1
    assert not answer(text).endswith("done -->")
    assert spans == find_marker_spans(text, find_markers(text))


def test_a_text_may_end_anywhere_in_a_marker() -> None:
    for text in ("<!-- STEP: what -->", "<!--\nstep  :\twhy\n-->"):
        assert PATTERN.fullmatch(text)
        for end in range(1, len(text) + 1):
            found = BEGINNING.search("a < b " + text[:end])
            assert (found is not None, found and found.end()) == (True, 6 + end)
    assert not PATTERN.search("<!-- \u017fTEP: what -->")  # a long s is no s


@pytest.mark.parametrize("killer", ["<!--", "<!-- STEP:", " ", "`", "<!-- STEP: a -->", "> ", "a <!-- STEP: a -->\n"])
def test_twice_the_text_takes_about_twice_the_time(killer: str) -> None:
    texts = {size: (killer * size * 500_000)[: size * 500_000] + "<!-- STEP: done -->" for size in (1, 2)}

    def once(size: int) -> None:
        text = texts[size]
        for spans in (read_spans(None, text), find_marker_spans(text, find_markers(text))):
            strip_own_marker(text, spans), strip_all_markers(text, spans)
            read_spans([list(span) for span in spans], text)

    assert_linear(once)


def test_it_needs_the_standard_library_alone() -> None:
    tree = ast.parse(Path(contract.__file__).read_text())
    used = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    used |= {name.name for n in ast.walk(tree) if isinstance(n, ast.Import) for name in n.names}
    assert {str(name).partition(".")[0] for name in used} <= sys.stdlib_module_names
