"""The outline of a Markdown text, with markdown-it-py as the referee."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from worker.enforcement.documents.adr import header_end
from worker.enforcement.documents.outline import outline

_REFEREE = MarkdownIt("commonmark")
_REFEREE.core.ruler.enableOnly(["normalize", "block"])
_REFEREE.block.ruler.disable(["reference"])  # definitions of links are no concern of the outline

#: Lines that open, close, continue and interrupt each other in every way CommonMark knows.
LINES = [
    "# a", "## b ##", "text", "- item", "1. x", "2) y", "10. t", "> q", "```", "```py", "~~~", "````", "    code",
    "  ind", "---", "===", "***", "", "", "<!-- c -->", "<!--", "-->", "<div>", "</div>", "<x>", "<pre>", "</pre>",
    "-", "*", "+ p", "   - n", "     deep", "> - a", "> ```", "- ```", "- > z", "- - x", "- # h", "> # y", "  > w",
    "\tt", "-\tq", "`a", "######", "####### s", "1.", "- [ ] k", "| t | u |",
]  # fmt: skip


def _title(title: str, top: bool) -> str:
    """The title in one line; only that of a heading in no list or quote is ever looked at."""
    return " ".join(title.split()) if top else "-"


def by_referee(text: str) -> dict[str, list[object]]:
    tokens = _REFEREE.parse(text)
    headings = [n for n, token in enumerate(tokens) if token.type == "heading_open"]
    return {
        "headings": [
            (int(tokens[n].tag[1]), _title(tokens[n + 1].content, not tokens[n].level), (tokens[n].map or [0])[0])
            for n in headings
        ],
        "fences": [(t.info.strip(), (t.map or [0])[0], t.level == 0) for t in tokens if t.type == "fence"],
        "paragraphs": [(t.map or [0])[0] for t in tokens if t.type == "paragraph_open"],
        "code": [(t.map or [0])[0] for t in tokens if t.type == "code_block"],
    }


def by_outline(text: str) -> dict[str, list[object]]:
    out = outline(text)
    titles = {heading.line for heading in out.headings}
    fences = sorted(out.fences, key=lambda fence: fence.start)
    code = by_referee(text)["code"]
    return {
        "headings": [(h.level, _title(h.title, h.top), h.line) for h in out.headings],
        "fences": [(f.info, f.start, f.top) for f in fences],
        "paragraphs": [start for start, _ in out.paragraphs if start not in titles],
        "code": [n for n in code if any(start <= n < end for start, end in out.indented)],  # type: ignore[operator]
    }


@settings(deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=9).map("\n".join))
@example("- a\n\n  ```\n  # x\n# y")
@example("> a\nb\n===")
@example("-\n\n  a")
@example("- a\n- b\n\n\n      c")
@example("<!--\n\n# a\n-->\n# b")
@example("> a\n>\n> b")
def test_the_outline_is_what_markdown_it_reads(text: str) -> None:
    assert by_outline(text) == by_referee(text)


@settings(deadline=None)
@given(st.text(alphabet="#->`~ \t\n1.a=*_<!|", max_size=40))
def test_the_outline_is_what_markdown_it_reads_letter_by_letter(text: str) -> None:
    assert by_outline(text) == by_referee(text)


def test_ranges_exclude_their_end_and_say_what_is_open() -> None:
    out = outline("a\n```x\nb\n```\n> q\nlazy\n\n    c\n\n~~~\nopen")
    assert [(f.start, f.end, f.closed) for f in out.fences] == [(1, 4, True), (9, 11, False)]
    assert out.quotes == [(4, 6)]
    assert out.indented == [(7, 8)]
    assert out.paragraphs == [(0, 1), (4, 6)]


@pytest.mark.parametrize("before", ["", "Text\n", "- Liste\n", "> Zitat\n", "1. x\n\n   y\n"])
def test_front_matter_is_found_behind_anything_but_code(before: str) -> None:
    out = outline(f"{before}---\nadr_id: 1\n# kein Titel\n---\n# Titel\n", header_end)
    start = before.count("\n")
    assert out.headers == [(start, start + 4)]
    assert [heading.title for heading in out.headings] == ["Titel"]


@pytest.mark.parametrize("before", ["```\n", "~~~~\n", "<!--\n", "<pre>\n"])
def test_front_matter_in_code_or_a_comment_is_none(before: str) -> None:
    assert outline(f"{before}---\nadr_id: 1\n---\n", header_end).headers == []
