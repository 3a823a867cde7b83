"""Reading a reply, whatever its shape, takes work that grows with its length (docs/enforcement.md, "Time")."""

import re
from collections.abc import Callable
from functools import partial

import pytest

from tests.growth import assert_linear, count_calls
from tests.unit.enforcement.rules.test_growth import FORBIDDEN, LINKS
from tests.unit.enforcement.samples import ADR
from worker.enforcement import ADRStructureValidator, Retry, decide_next, validate_attempt
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.normaliser import normalise_answer
from worker.enforcement.replies.part_reader import extract_parts
from worker.enforcement.replies.part_tags import find_tagged_texts
from worker.enforcement.reply_merging import list_candidates
from worker.enforcement.rules.decoded_text import decode_text

SECTION = "## Entscheidung\n\n"
FIRST = validate_attempt([], ADR.replace(f"{SECTION}Wir nehmen einen Cache.\n\n", ""), [ADRStructureValidator()])
ASKED = decide_next([FIRST])
FEEDBACK = ASKED.feedback if isinstance(ASKED, Retry) else ""
TAG = re.findall("<part id=.*?>", FEEDBACK)[0]
SIZE = 10_000
#: Most calls for a character of a short text.
MOST_CALLS = 60

SHAPES = {
    "fences": "```\nx\n```\n",
    "open fences": "```a\n",
    "fenced documents": "```markdown\n# ADR-1: x\n## Kontext\n\ny\n```\n",
    "fences of two kinds": "~~~\n````\n```\n",
    "headings": SECTION,
    "headings without text": "## Entscheidung\n",
    "deep headings": "### Entscheidung\n",
    "headings of every level": "# a\n## b\n### c\n#### d\n##### e\n###### f\n",
    "underlined headings": "a\n---\n\n",
    "headers": "---\nadr_id: 1\ntitle: x\n---\n\n# ADR-1: x\n\n",
    "rules": "---\n",
    "rules and blank lines": "---\n\n",
    "lists": "- a\n",
    "deep lists": "".join(f"{'  ' * depth}- a\n" for depth in range(12)),
    "tables": "| 1 | 2 |\n",
    "quotes": "> a\n",
    "deep quotes": "> " * 30 + "a\n\n",
    "tags": "<a>",
    "tool calls": '<invoke name="x">\n',
    "frames": f"{TAG}\nx\n</part>\n",
    "frames of many numbers": "".join(f'{TAG[:-2]}-{n}">\n## Kontext\n\nx\n</part>\n' for n in range(1, 99)),
    "ends of frames": "</part>\n",
    "markers": "## Kontext\n<!-- STEP: done -->\n",
    "reasoning": "<think>a</think>\n",
    "placeholders": "TODO: write it\n",
    "blank lines": "\n",
    "paragraphs": "a\n\n",
    "one word": "a",
    "one line": "wort ",
    "one rule": "-",
    "windows line ends": "a\r\n\r\n",
    "carriage returns": "\r",
    "invisible letters": "a\u200b",
    "wide letters": "\uff21",
    "entities": "&amp;amp;lt;",
    "escapes": "\\u0041%41",
}  # fmt: skip

#: Reads the text in the answer and in the reply.
WHOLE = "whole answer"


def repeat_answer(text: str) -> object:
    """Read a reply that repeats the whole answer, with a line that differs."""
    return list_candidates(FIRST.answer + text, FIRST.errors, f"{ADR}x\n{text}", (), FEEDBACK)


WORK: dict[str, Callable[[str], object]] = {
    "frame": lambda text: list_candidates(FIRST.answer, FIRST.errors, f"{TAG}\n{SECTION}{text}\n</part>", (), FEEDBACK),
    "heading": lambda text: list_candidates(FIRST.answer, FIRST.errors, SECTION + text, (), FEEDBACK),
    "lines": lambda text: extract_parts(text, ["lines:2-2", "fence:json:1", "yaml_header"], f"a\n{text}", FEEDBACK),
    "answer": lambda text: list_candidates(FIRST.answer + text, FIRST.errors, f"{SECTION}Neu.", (), FEEDBACK),
    WHOLE: repeat_answer,
    "normaliser": normalise_answer,
    "forbidden": lambda text: FORBIDDEN.validate(text, {}),
    "links": lambda text: LINKS.validate(text, {}),
}


def do_afresh(work: Callable[[str], object], text: str) -> None:
    parse_document.cache_clear()
    decode_text.cache_clear()
    work(text)


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_reply_of_any_shape_takes_twice_the_work_for_twice_the_text(shape: str, kind: str) -> None:
    unit, work = SHAPES[shape], partial(do_afresh, WORK[kind])
    texts = {size: unit * (size * SIZE // len(unit)) for size in (1, 2)}
    once, twice = (count_calls(partial(work, text)) for text in texts.values())
    assert twice < 2.3 * once + 1000
    assert twice < MOST_CALLS * len(texts[2]) * (2 if kind == WHOLE else 1) + 10_000
    assert_linear(lambda size: work(texts[size]))


@pytest.mark.parametrize("kind", ["frame", "heading"])
def test_a_section_of_placeholders_takes_less_work_than_one_of_words(kind: str) -> None:
    placeholders, words = (partial(do_afresh, WORK[kind], line * 20_000) for line in ("TODO\n", "word\n"))
    assert count_calls(placeholders) < 0.75 * count_calls(words)


def test_many_ends_of_a_frame_take_time_that_grows_with_their_number() -> None:
    assert_linear(lambda size: find_tagged_texts(f"{TAG}\n" + "</part>\n" * (15_000 * size), FEEDBACK))
