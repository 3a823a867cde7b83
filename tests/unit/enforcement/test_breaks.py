"""A text that broke off anywhere: what the agent sends is joined there, byte for byte, and talk is never joined."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.enforcement.test_going_on import ANSWERS, LIST, PROSE, TABLE, TEXTS, broken
from worker.enforcement.answer_continuation import (
    append_continuation,
    find_unfinished_text,
    quote_last_lines,
    trim_partial_marks,
)

HEAD = f"# Plan\n\n## Ziel\n\n{PROSE}.\n\n"


@pytest.mark.parametrize(
    ("so_far", "reply", "line"),
    [
        ("- [x", "] AK-2: messbar", "- [x] AK-2: messbar"),
        ("- [", " ] AK-2: messbar", "- [ ] AK-2: messbar"),
        ("- [x", "- [x] AK-2: messbar", "- [x] AK-2: messbar"),
        ("- [x", "- [ ] AK-2: messbar", "- [ ] AK-2: messbar"),
        ("``", "`ts\nlet x\n```", "```ts"),
        ("``", "```ts\nlet x\n```", "```ts"),
        ("-", "--\n\nDanach der Index.", "---"),
        ("-", "---\n\nDanach der Index.", "---"),
        ("-", " der Index", "- der Index"),
        ("#", "# Weg zum Ziel", "## Weg zum Ziel"),
        ("#", "## Weg zum Ziel", "## Weg zum Ziel"),
        ("##", " Weg zum Ziel", "## Weg zum Ziel"),
        ("*", "*Wichtig:** der Index", "**Wichtig:** der Index"),
        ("**", "Wichtig:** der Index", "**Wichtig:** der Index"),
        ("1.", " der Index", "1. der Index"),
        ("<!-- S", "TEP: done -->", "<!-- STEP: done -->"),
        ("<!-- S", "<!-- STEP: done -->", "<!-- STEP: done -->"),
        ("|-", "--|---|", "|---|---|"),
        ("Der Wert `", "TypeError` kommt.", "Der Wert `TypeError` kommt."),
        ("- zweitens der Ind", "ex und mehr", "- zweitens der Index und mehr"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_a_break_in_a_mark_is_joined_there(so_far: str, reply: str, line: str, again: bool) -> None:
    text = HEAD + so_far
    if again and trim_partial_marks(text) != text:  # the last line that was quoted comes once more
        reply = f"{quote_last_lines(trim_partial_marks(text))}\n\n{line}"
    joined = append_continuation(find_unfinished_text(broken(text)), reply)
    assert joined.fits
    assert joined.text.split("\n")[HEAD.count("\n")] == line
    assert joined.text.startswith(HEAD.rstrip())


@pytest.mark.parametrize(
    ("row", "reply", "after"),
    [
        ("| 2 | 12 € |", "| 3 | nichts |\n", "| 2 | 12 € |\n| 3 | nichts |\n"),
        ("| 2 | 12 €", " |\n| 3 | nichts |\n", "| 2 | 12 € |\n| 3 | nichts |\n"),
        ("| 2 |", "| 12 € |\n", "| 2 | 12 € |\n"),
        ("| 2 |", " 12 € |\n", "| 2 | 12 € |\n"),
        ("| 2 | 12", "| 2 | 12 € |\n", "| 2 | 12 € |\n"),
    ],
)
def test_a_table_gets_no_doubled_mark(row: str, reply: str, after: str) -> None:
    head = TABLE.rpartition("\n")[0] + "\n"
    assert append_continuation(head + row, reply).text == head + after


@pytest.mark.parametrize(
    "reply",
    ["sorry, i cannot continue.", "Sorry, I cannot continue.", "Es tut mir leid, ich kann nicht weitermachen.",
     "API Error: 529 overloaded", "Request timed out.", "\n\nI hit my output limit and have to stop here.",
     "Lo siento, no puedo continuar.", "[Request interrupted by user]"],
)  # fmt: skip
@pytest.mark.parametrize("end", ["der Dienst prüft check", "der Dienst prüft ", "Der Dienst prüft.", "Der Dienst.\n\n"])
def test_talk_is_never_joined(reply: str, end: str) -> None:
    text = f"{PROSE}.\n\n{end}"
    assert append_continuation(text, reply) == append_continuation(text, "")


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, cut=st.floats(0, 1), crlf=st.booleans(), reply_crlf=st.booleans(), data=st.data())
def test_a_repeated_line_joins_at_every_break_whatever_the_line_ends(
    text: str, cut: float, crlf: bool, reply_crlf: bool, data: st.DataObject
) -> None:
    whole = text.replace("\n", "\r\n") if crlf else text
    so_far = find_unfinished_text(broken(whole[: round(len(whole) * cut)]))
    assume("\n" in so_far)
    surely = trim_partial_marks(so_far).rstrip()
    quoted = quote_last_lines(surely)
    rest = whole[len(surely) - len(quoted) :].replace("\r\n", "\n")
    joined = append_continuation(so_far, rest.replace("\n", "\r\n") if reply_crlf else rest)
    assert joined.fits
    assert joined.text == whole
    assert so_far.startswith(joined.text[: joined.kept])


@settings(max_examples=400, deadline=None)
@given(text=st.sampled_from(ANSWERS), cut=st.floats(0, 1), crlf=st.booleans())
def test_the_bare_rest_joins_at_every_break_or_does_not_fit(text: str, cut: float, crlf: bool) -> None:
    whole = text.replace("\n", "\r\n") if crlf else text
    so_far = find_unfinished_text(broken(whole[: round(len(whole) * cut)]))
    assume(so_far and whole[len(so_far) :].strip())
    joined = append_continuation(so_far, whole[len(so_far) :])
    if joined.fits:
        assert "".join(joined.text.split()) == "".join(whole.split())
        assert joined.text.count("\r") == joined.text.count("\r\n")
        assert ("\r" in joined.text) is ("\r" in whole)


def test_a_list_that_broke_off_keeps_its_end() -> None:
    assert append_continuation(LIST, "ex\n- drittens nichts\n").text == f"{LIST}ex\n- drittens nichts\n"
