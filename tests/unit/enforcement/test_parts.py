"""Parts of answers: found, read, replaced, and asked for alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.enforcement import Part, Policy, ResponseValidator, Retry, ValidationIssue, decide, judge
from worker.enforcement.rules import CodeBlocks, JsonSchema, Rule, Structure

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
ADR = '---\nadr_id: "040"\ntitle: X\nstatus: Proposed\n---\n\n# ADR-040: X\n\n## Kontext\n\nold\n'
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
    assert Part.field("title").text(ADR) == "title: X"
    assert Part.field("title").put(ADR, "title: Y") == ADR.replace("title: X", "title: Y")


def test_an_empty_and_a_missing_section_are_filled_before_the_marker() -> None:
    assert Part.section("Empty").put(ANSWER, "now") == ANSWER.replace("## Empty\n", "## Empty\n\nnow\n")
    added = Part.section("New").put(ANSWER, "now")
    assert added == ANSWER.replace("last\n\n<!--", "last\n\n## New\n\nnow\n\n<!--")
    assert Part.section("New").put("Hi", "now") == "Hi\n\n## New\n\nnow\n"


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
        (Part.lines(2), "a\nBAD\nc", "line 2 in a ```text block", "```text\nGOOD\n```", "a\nGOOD\nc"),
        (Part.lines(2, 3), "a\nBAD\nc\nd", "lines 2-3 in a ```text", "Here:\n```\nGOOD\n```", "a\nGOOD\nd"),
        (
            Part.section("Why"),
            "x\n\n## Why\n\nBAD\n\n## Then\n\ny",
            "'## Why'",
            "Of course.\n\n## Why\n\nGOOD",
            "x\n\n## Why\n\nGOOD\n\n## Then\n\ny",
        ),
        (Part.section("Why"), "x", "'## Why'", "## Why\n\nGOOD", "x\n\n## Why\n\nGOOD\n"),
    ],
)
def test_a_part_is_asked_for_alone_and_put_into_the_answer(
    part: Part, answer: str, asked: str, reply: str, after: str
) -> None:
    policy = Policy(locale="en")
    first = judge([], answer, [Wants(part)], {"locale": "en"})
    decision = decide([first], policy)
    assert isinstance(decision, Retry)
    assert "Send only" in decision.feedback
    assert asked in decision.feedback
    second = judge([first], reply, [Wants(part)], {"locale": "en"})
    assert (second.answer, second.issues) == (after, ())


def test_a_reply_without_the_part_leaves_the_answer_as_it_was() -> None:
    answer = "a\n```json\nBAD\n```\nc"
    first = judge([], answer, [Wants(Part.fence("json"))])
    for reply in ("I cannot do that.", "```yaml\na: 1\n```", "```json\n1\n```\n```json\n2\n```"):
        assert judge([first], reply, [Wants(Part.fence("json"))]).answer == answer


@pytest.mark.parametrize(
    ("rule", "answer", "part"),
    [
        (CodeBlocks(), "```json\n{}\n```\n\n```json\n{'a'}\n```", "fence:json:2"),
        (JsonSchema(schema={"type": "object"}), "```json\n[]\n```", "fence:json:1"),
        (JsonSchema(schema={"type": "object"}), "[]", ""),
        (Structure(sections=("Context|Kontext",)), "## Other\n\nx", "## Context"),
        (Structure(sections=("Context",)), "## Context\n\n## Other\n\nx", "## Context"),
        (Structure(sections=("Context",), level=4), "x", ""),
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
