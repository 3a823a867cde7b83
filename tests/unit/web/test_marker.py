"""The step marker never shows in an answer that is still growing, and each reader ends with the answer itself."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api_client.contract.marker import PATTERN
from api_client.web.bodies.models import StreamMode
from api_client.web.marker import VisibleText
from api_client.web.streaming.page import page_of
from api_client.web.streaming.reply import Reply, opening
from tests.growth import assert_linear
from tests.unit.web.fake import event, finished
from tests.unit.web.openwebui import Reader
from worker.enforcement import strip_marker
from worker.enforcement.documents.step import marker_spans

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


BROKEN = ["<!-- STEP:\nwhat -->", "<!--\nSTEP: what\n-->", "<!-- STEP: wh\r\nat -->", "<!--\n\nSTEP\n:\nx\n-->"]


@pytest.mark.parametrize("marker", BROKEN)
@pytest.mark.parametrize("before", ["Erst so. ", "Erst so.\n\n", "```\ncode\n```\n"])
def test_a_marker_broken_over_lines_and_pieces_never_shows(marker: str, before: str) -> None:
    text = f"{before}{marker}\nDann so."
    for size in range(1, 12):
        shown = shown_piece_by_piece([text[start : start + size] for start in range(0, len(text), size)])
        assert not any("<!" in seen or "STEP" in seen for seen in shown)
        assert shown[-1] == shown_piece_by_piece([text])[-1]
        assert shown[-1].endswith("Dann so.")


def test_markers_in_quotes_and_fences_of_a_draft_are_shown_as_they_come() -> None:
    text = "> Zitat <!-- STEP: what --> x\n\n```\n<!-- STEP: why -->\n```\nEnde <!-- STEP: x -->"
    assert shown_piece_by_piece(list(text))[-1] == text.removesuffix(" <!-- STEP: x -->")


def test_what_only_began_like_a_marker_is_shown_line_by_line() -> None:
    text = "<!-- STEP:\n```\na > b\n<!-- STEP: x -->\n```\nEnde <!-- STEP: y -->"
    assert shown_piece_by_piece(list(text))[-1] == "<!-- STEP:\n```\na > b\n<!-- STEP: x -->\n```\nEnde"


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


pieces_of_texts = st.lists(fragments | st.text(max_size=3), max_size=25)


@settings(max_examples=400, deadline=None)
@example(["````a ", "<!-- STEP: x -->", " `"])
@example([" ", "<!-- STEP: what -->", " ", "\n", "a"])
@given(pieces_of_texts)
def test_it_does_not_matter_into_which_pieces_a_growing_answer_is_cut(pieces: list[str]) -> None:
    text, seen = "".join(pieces), shown_piece_by_piece(pieces)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
    tail = ">\n" + "\n" * 12 + "Ende.\n"  # whatever was held back because it might be a marker is decided by now
    ends = {shown_piece_by_piece(cut)[-1] for cut in ([*pieces, tail], [text + tail], [*text, *tail])}
    assert len(ends) == 1


def finish(text: str, reply: Reply, mode: StreamMode, pieces: list[str]) -> Reader:
    """A reader's page after these pieces of a draft and the accepted answer."""
    page = page_of(reply, mode)
    reader = Reader().read(opening(reply))
    told = finished(len(pieces) + 2, "passed", response=text).data | {"markers": [list(s) for s in marker_spans(text)]}
    events = [("attempt.output", {"attempt": 1, "text": piece}) for piece in pieces] + [("turn.finished", told)]
    for seq, (kind, data) in enumerate([("attempt.started", {"attempt": 1}), *events], 1):
        reader.read(page.render(event(seq, kind, **data)))
    return reader


@settings(max_examples=400, deadline=None)
@example(["Beispiel:\n\n    <!-- STEP: what -->\n\nEnde\n<!-- STEP: done -->"], StreamMode.LIVE)
@example(["> Zitat <!-- STEP: what -->\n\nEnde\n<!-- STEP: done -->"], StreamMode.VALIDATED)
@example(["a", "<!-- STEP: what -->", "<!-- STEP: what -->", "\n", "b"], StreamMode.LIVE)
@given(pieces_of_texts, st.sampled_from(StreamMode))
def test_the_relays_text_is_the_answer_but_for_its_own_marker_streamed_or_not(
    pieces: list[str], mode: StreamMode
) -> None:
    text = "".join(pieces)
    expected = strip_marker(text)  # the worker's word on it
    plain, webui = (Reply(turn_id="t0-1", model="m", created=1, locale="de", status=status) for status in (False, True))
    assert finish(text, plain, mode, pieces).text == expected
    assert plain.completion(text, marker_spans(text))["choices"][0]["message"]["content"] == expected
    drawn = finish(text, webui, mode, pieces).text
    assert drawn == webui.completion(text, marker_spans(text))["choices"][0]["message"]["content"]
    assert PATTERN.sub("", drawn).split() == PATTERN.sub("", expected).split()


@pytest.mark.long
@pytest.mark.parametrize(
    "killer", ["<!-- STEP: ", "<", "<!--" + " " * 200, "a\n", "<!-- STEP:\n\n\n", "<!-- STEP: a\n--> "]
)
def test_twice_the_text_takes_about_twice_the_time(killer: str) -> None:
    texts = {size: killer * (size * 100_000 // len(killer)) for size in (1, 2)}
    assert_linear(lambda size: shown_piece_by_piece(pieces(texts[size])))


def pieces(text: str) -> list[str]:
    return [text[start : start + 1000] for start in range(0, len(text), 1000)]
