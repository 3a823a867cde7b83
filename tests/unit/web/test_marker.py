"""The step marker never shows: not in a whole answer, and not in one that is still growing."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api_client.web.streaming.marker import VisibleText, without_marker

ANSWER = "Erst so.\n\n<!-- STEP: what -->\nDann so: `<!-- STEP: x -->` <b>fett</b>\n\n<!-- STEP: why -->\n"
SHOWN = "Erst so.\n\nDann so: `<!-- STEP: x -->` <b>fett</b>"

MARKERS = ["<!-- STEP: what -->", "<!-- step:x -->"]

fragments = st.sampled_from(
    [*"<!-:`> \n\t", "<!--", "<!-", "STEP", "-->", "\n\n", "```", "~~~", "Wort ", "\r\n", "<b>", "- ", *MARKERS]
)


def shown_piece_by_piece(pieces: list[str]) -> list[str]:
    visible, seen = VisibleText(), [""]
    for piece in pieces:
        seen.append(seen[-1] + visible.feed(piece))
    return seen


def test_markers_go_and_everything_else_stays() -> None:
    assert without_marker(ANSWER) == SHOWN


BROKEN = ["<!-- STEP:\nwhat -->", "<!--\nSTEP: what\n-->", "<!-- STEP: wh\r\nat -->", "<!--\n\nSTEP\n:\nx\n-->"]


@pytest.mark.parametrize("marker", BROKEN)
@pytest.mark.parametrize("before", ["Erst so. ", "Erst so.\n\n", "```\ncode\n```\n"])
def test_a_marker_broken_over_lines_and_pieces_never_shows(marker: str, before: str) -> None:
    text = f"{before}{marker}\nDann so."
    assert "STEP" not in without_marker(text)
    assert without_marker(text).endswith("Dann so.")
    for size in range(1, 12):
        shown = shown_piece_by_piece([text[start : start + size] for start in range(0, len(text), size)])
        assert not any("<!" in seen or "STEP" in seen for seen in shown)
        assert shown[-1] == without_marker(text)


def test_what_only_began_like_a_marker_is_shown_line_by_line() -> None:
    text = "<!-- STEP:\n```\na > b\n<!-- STEP: x -->\n```\nEnde <!-- STEP: y -->"
    assert without_marker(text) == "<!-- STEP:\n```\na > b\n<!-- STEP: x -->\n```\nEnde"
    assert shown_piece_by_piece(list(text))[-1] == without_marker(text)


def test_letter_by_letter_no_part_of_a_marker_is_seen() -> None:
    for seen in shown_piece_by_piece(list(ANSWER)):
        assert SHOWN.startswith(seen)
    assert seen == SHOWN


def test_text_that_is_no_marker_is_not_held_back() -> None:
    assert shown_piece_by_piece(["a < b, ", "<p>, <!-- ", "Notiz --> c"]) == [
        "",
        "a < b,",
        "a < b, <p>,",
        "a < b, <p>, <!-- Notiz --> c",
    ]
    assert shown_piece_by_piece(["<!-- STEP: " + "x" * 300])[-1].startswith("<!-- STEP")  # longer than any marker


@settings(max_examples=400, deadline=None)
@example(["````a ", "<!-- STEP: x -->", " `"])
@example([" ", "<!-- STEP: what -->", " ", "\n", "a"])
@given(st.lists(fragments | st.text(max_size=3), max_size=25))
def test_what_is_shown_of_a_growing_answer_begins_the_answer(pieces: list[str]) -> None:
    final = without_marker("".join(pieces))
    for seen in shown_piece_by_piece(pieces):
        assert final.startswith(seen)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- STEP: " * 20_000,
        "<" * 200_000,
        "<!--" + " " * 200_000,
        "a\n" * 100_000,
        "<!-- STEP:\n\n\n" * 20_000,
        "<!-- STEP: a\n--> " * 20_000,
    ],
)
def test_no_text_makes_it_slow(text: str) -> None:
    began = time.perf_counter()
    shown_piece_by_piece([text[start : start + 1000] for start in range(0, len(text), 1000)])
    assert time.perf_counter() - began < 5
