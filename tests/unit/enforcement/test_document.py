"""The outline of a Markdown text, with markdown-it-py as the referee."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.unit.enforcement.samples import ADR
from worker.enforcement import (
    Accept,
    Part,
    Policy,
    ResponseValidator,
    Retry,
    ValidationIssue,
    build_validators,
    decide_next,
    validate_attempt,
)
from worker.enforcement.documents.adr import find_header_end
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import MAX_BLOCKS, parse_outline
from worker.enforcement.rules import CodeBlocksRule, JsonSchemaRule, Rule, StructureRule

_REFEREE = MarkdownIt("commonmark")
_REFEREE.core.ruler.enableOnly(["normalize", "block"])
_REFEREE.block.ruler.disable(["reference"])  # definitions of links are no concern of the outline

#: Lines that open, close, continue and interrupt each other in every way CommonMark knows.
LINES = [
    "# a",
    "## b ##",
    "text",
    "- item",
    "1. x",
    "2) y",
    "10. t",
    "> q",
    "```",
    "```py",
    "~~~",
    "````",
    "    code",
    "  ind",
    "---",
    "===",
    "***",
    "",
    "",
    "<!-- c -->",
    "<!--",
    "-->",
    "<div>",
    "</div>",
    "<x>",
    "<pre>",
    "</pre>",
    "-",
    "*",
    "+ p",
    "   - n",
    "     deep",
    "> - a",
    "> ```",
    "- ```",
    "- > z",
    "- - x",
    "- # h",
    "> # y",
    "  > w",
    "\tt",
    "-\tq",
    "`a",
    "######",
    "####### s",
    "1.",
    "- [ ] k",
    "| t | u |",
]


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
    out = parse_outline(text)
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
    out = parse_outline("a\n```x\nb\n```\n> q\nlazy\n\n    c\n\n~~~\nopen")
    assert [(f.start, f.end, f.closed) for f in out.fences] == [(1, 4, True), (9, 11, False)]
    assert out.quotes == [(4, 6)]
    assert out.indented == [(7, 8)]
    assert out.paragraphs == [(0, 1), (4, 6)]


@pytest.mark.parametrize("before", ["", "Text\n", "- Liste\n", "> Zitat\n", "1. x\n\n   y\n"])
def test_front_matter_is_found_behind_anything_but_code(before: str) -> None:
    out = parse_outline(f"{before}---\nadr_id: 1\n# kein Titel\n---\n# Titel\n", find_header_end)
    start = before.count("\n")
    assert out.headers == [(start, start + 4)]
    assert [heading.title for heading in out.headings] == ["Titel"]


@pytest.mark.parametrize("before", ["```\n", "~~~~\n", "<!--\n", "<pre>\n"])
def test_front_matter_in_code_or_a_comment_is_none(before: str) -> None:
    assert parse_outline(f"{before}---\nadr_id: 1\n---\n", find_header_end).headers == []


# Parts of answers: found, read, replaced, and asked for alone.

ANSWER = """Hi

```json
{"a": 1,}
```

text

- item

  ```py
  x = (
  ```

## Why

old

### Deeper

more

## Empty

## Then

last

<!-- STEP: done -->
"""
OLD_ADR = '---\nadr_id: "040"\ntitle: X\nstatus: Proposed\n---\n\n# ADR-040: X\n\n## Kontext\n\nold\n'
PARTS = [
    (Part.section("Why"), "old\n\n### Deeper\n\nmore"),
    (Part.section("why:"), "old\n\n### Deeper\n\nmore"),
    (Part.section("Then"), "last"),
    (Part.fence("json"), '{"a": 1,}'),
    (Part.fence("python"), "  x = ("),
    (Part.fence("", 2), "  x = ("),
    (Part.lines(7), "text"),
    (Part.lines(1, 3), "Hi\n\n```json"),
]


@pytest.mark.parametrize(("part", "text"), PARTS, ids=str)
@pytest.mark.parametrize("eol", ["\n", "\r\n"])
def test_a_part_is_found_and_replaced_and_nothing_else_changes(part: Part, text: str, eol: str) -> None:
    answer = ANSWER.replace("\n", eol)
    assert part.text(answer) == text.replace("\n", eol)
    new = "NEW" if "fence" not in part.name else "{}"
    indent = "  " if text.startswith("  ") else ""
    assert part.put(answer, new) == answer.replace(text.replace("\n", eol), indent + new, 1)


@pytest.mark.parametrize(
    "part", [Part.section("None"), Part.fence("yaml"), Part.fence("json", 2), Part.lines(99), Part.field("title")]
)
def test_what_an_answer_does_not_have_is_not_found(part: Part) -> None:
    assert part.find(ANSWER) is None
    assert part.text(ANSWER) is None


def test_a_field_of_the_header_is_found_and_replaced() -> None:
    assert Part.field("title").text(OLD_ADR) == "title: X"
    assert Part.field("title").put(OLD_ADR, "title: Y") == OLD_ADR.replace("title: X", "title: Y")


def test_an_empty_and_a_missing_section_are_filled_before_the_marker() -> None:
    assert Part.section("Empty").put(ANSWER, "now") == ANSWER.replace("## Empty\n", "## Empty\n\nnow\n")
    added = Part.section("New").put(ANSWER, "now")
    assert added == ANSWER.replace("last\n\n<!--", "last\n\n## New\n\nnow\n\n<!--")
    assert Part.section("New").put("Hi", "now") == "Hi\n\n## New\n\nnow\n"
    assert Part.section("New").put("Hi\n\n```py\nx = 1\n", "now") == "Hi\n\n```py\nx = 1\n```\n\n## New\n\nnow\n"


def test_a_text_that_would_end_its_block_is_not_put_in() -> None:
    assert Part.fence("json").put(ANSWER, "```\n# out") == ANSWER


@pytest.mark.parametrize("made", [lambda: Part.fence("x", 0), lambda: Part.lines(0), lambda: Part.lines(3, 2)])
def test_a_part_that_cannot_be_is_refused(made: Callable[[], Part]) -> None:
    with pytest.raises(ValueError, match=r"must be|run backwards"):
        made()


class Wants(ResponseValidator):
    """Finds a fault in a part for as long as its text holds BAD."""

    name = "wants"

    def __init__(self, part: Part) -> None:
        self.part = part

    def validate(self, response: str, context: object) -> list[ValidationIssue]:
        text = self.part.text(response)
        return [] if text and "BAD" not in text else [ValidationIssue("BAD", "bad", "write GOOD", part=self.part)]


@pytest.mark.parametrize(
    ("part", "answer", "asked", "reply", "after"),
    [
        (
            Part.fence("json", 2),
            "a\n```json\n{}\n```\nb\n```json\nBAD\n```\nc",
            "```json block number 2",
            "Sorry, here it is:\n\n```json\n1\n```\n\nDone.",
            "a\n```json\n{}\n```\nb\n```json\n1\n```\nc",
        ),
        (
            Part.fence("json", 2),
            "a\n```json\n{}\n```\nb\n```json\nBAD\n```\nc",
            "```json block number 2",
            "all new\n```json\n5\n```\n```json\n1\n```\nwithout b",
            "a\n```json\n{}\n```\nb\n```json\n1\n```\nc",
        ),
        (Part.section("Why"), "x", "'## Why'", "## Why\n\nGOOD", "x\n\n## Why\n\nGOOD\n"),
    ],
)
def test_a_part_is_asked_for_alone_and_put_into_the_answer(
    part: Part, answer: str, asked: str, reply: str, after: str
) -> None:
    policy = Policy(locale="en")
    first = validate_attempt([], answer, [Wants(part)], {"locale": "en"})
    decision = decide_next([first], policy)
    assert isinstance(decision, Retry)
    assert "Send only" in decision.feedback
    assert asked in decision.feedback
    second = validate_attempt([first], reply, [Wants(part)], {"locale": "en"})
    assert (second.answer, second.issues) == (after, ())


def test_a_reply_without_the_part_leaves_the_answer_as_it_was() -> None:
    answer = "a\n```json\nBAD\n```\nc"
    first = validate_attempt([], answer, [Wants(Part.fence("json"))])
    for reply in ("I cannot do that.", "```yaml\na: 1\n```", "```json\n1\n```\n```json\n2\n```"):
        assert validate_attempt([first], reply, [Wants(Part.fence("json"))]).answer == answer


@pytest.mark.parametrize(
    ("rule", "answer", "part"),
    [
        (CodeBlocksRule(), "```json\n{}\n```\n\n```json\n{'a'}\n```", "fence:json:2"),
        (JsonSchemaRule(schema={"type": "object"}), "```json\n[]\n```", "fence:json:1"),
        (JsonSchemaRule(schema={"type": "object"}), "[]", ""),
        (StructureRule(sections=("Context|Kontext",)), "## Other\n\nx", "## Context"),
        (StructureRule(sections=("Context",)), "## Context\n\n## Other\n\nx", "## Context"),
        (StructureRule(sections=("Context",), level=4), "x", ""),
    ],
)
def test_rules_name_the_part_that_is_to_be_sent(rule: Rule, answer: str, part: str) -> None:
    assert [issue.part for issue in rule.validate(answer, {})] == [part]


@given(st.text(alphabet="ab#`\n- ", max_size=80), st.text(alphabet="ab#`\n", max_size=20))
def test_putting_a_part_back_changes_nothing_and_no_text_makes_it_raise(answer: str, text: str) -> None:
    for part in (Part.section("a"), Part.fence(""), Part.fence("a", 2), Part.lines(2), Part.field("a")):
        part.put(answer, text)
        if (found := part.text(answer)) is not None and found.strip() and "fence" not in part.name:
            assert part.put(answer, found) == answer


RULES = build_validators(("step_marker", "adr_structure"), root=Path())
MARKER = "<!-- STEP: generate -->"


def test_a_second_section_with_the_same_text_renames_the_first_one() -> None:
    first = ADR.replace("## Kontext", "## Ausgangslage") + f"\n{MARKER}\n"
    history = [validate_attempt([], first, RULES)]
    history.append(validate_attempt(history, "## Kontext\n\nDie Suche ist langsam.", RULES))
    assert decide_next(history) == Accept(2)
    assert history[-1].answer == ADR + f"\n{MARKER}\n"


def test_what_was_put_in_and_left_out_is_on_the_attempt() -> None:
    first = ADR.replace("## Entscheidung\n\nWir nehmen einen Cache.\n\n", "") + f"\n{MARKER}\n"
    history = [validate_attempt([], first, RULES)]
    tag = re.findall("<part id=.*?>", decide_next(history).feedback)[0]  # type: ignore[union-attr]
    reply = (
        f"Hier ist sie:\n\n{tag}\n## Entscheidung\n\nWir nehmen Redis.\n</part>\n\nSag Bescheid, wenn noch etwas fehlt."
    )
    feedback = f"Send it:\n\n{tag}"
    history.append(validate_attempt(history, reply, RULES, feedback=feedback))
    put, *left = history[-1].edits
    assert put == "Put in: the section '## Entscheidung' (17 characters)"
    assert "Hier ist sie:" in left[0]
    assert "Sag Bescheid" in left[1]
    assert validate_attempt([], reply, RULES).edits == ()


@pytest.mark.parametrize(
    "line", ["- - - - a\n", "- a\n  - b\n    - c\n", "> - a\n", "1. a\n   2. b\n", "Title\n===\n", "___\n"]
)
def test_a_text_of_too_many_blocks_is_read_to_its_end(line: str) -> None:
    text = f"{line * (1_000_000 // len(line))}\n# Last\n\n```json\n{{}}\n```\n\n> quote\n\n<!-- STEP: done -->\n"
    document = parse_document(text)
    assert [heading.title for heading in document.out.headings if heading.level == 1][-1] == "Last"
    assert [fence.info for fence in document.out.fences] == ["json"]
    assert [marker.step for marker in document.markers] == ["done"]
    assert len(document.out.paragraphs) <= MAX_BLOCKS + 1
