"""Before an answer is judged, declared edits take off what models put around it; nothing else changes a byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.enforcement.samples import ADR, HEADER
from worker.enforcement import Accept, ADRStructureValidator, Policy, StepMarkerValidator, decide_next, validate_attempt
from worker.enforcement.documents.normaliser import normalise_answer
from worker.enforcement.policy import Decision
from worker.enforcement.rules import JsonSchemaRule, LengthRule

MARKER = "<!-- STEP: generate -->"
RULES = (StepMarkerValidator(), ADRStructureValidator())
GOOD = f"{ADR}\n{MARKER}\n"
BODY = ADR.removeprefix(HEADER)
TITLE = BODY.strip().split("\n")[0]
THOUGHTS = "I must not forget the header.\n```yaml\n- not: closed\n## Kontext\n"


def decided(answer: str) -> tuple[Decision, str, tuple[str, ...]]:
    attempt = validate_attempt([], answer, RULES, policy=Policy(locale="en"), context={"locale": "en"})
    return decide_next([attempt]), attempt.answer, attempt.edits


FORMS = {
    "thoughts": f"<think>\n{THOUGHTS}</think>\n\n{GOOD}",
    "thinking": f"<thinking>{THOUGHTS}</thinking>{GOOD}",
    "reasoning twice": f"<reasoning>a</reasoning>\n<think>b</think>\n{GOOD}",
    "thoughts without a beginning": f"I look for the header.\n</think>\n{GOOD}",
    "in a fence": f"```markdown\n{ADR}```\n\n{MARKER}\n",
    "in a fence without a word": f"```\n{ADR}```\n\n{MARKER}",
    "in a fence with its marker": f"```md\n{GOOD}```\n",
    "in a fence, thoughts before it": f"<think>x</think>\n```markdown\n{GOOD}```",
    "its header in a fence": f"```yaml\n{HEADER}```\n{BODY}\n{MARKER}\n",
    "its header in a fence without rules": "```yaml\n" + HEADER.replace("---\n", "") + f"```\n{BODY}\n{MARKER}\n",
    "its header twice": f"{HEADER}\n{HEADER}{BODY}\n{MARKER}\n",
    "a second header without an id": f"{HEADER}\n---\nstatus: proposed\n---\n{BODY}\n{MARKER}\n",
    "a poor header first": f"---\nstatus: proposed\n---\n\n{HEADER}{BODY}\n{MARKER}\n",
    "its title above the header": f"{TITLE}\n\n{HEADER}{BODY}\n{MARKER}\n",
    "its title above the header alone": f"{TITLE}\n\n{HEADER}{BODY.replace(TITLE, '', 1)}\n{MARKER}\n",
    "its title twice": f"{HEADER}{BODY.replace(TITLE, f'{TITLE}{chr(10)}{chr(10)}{TITLE}', 1)}\n{MARKER}\n",
    "hard blanks in headings": GOOD.replace("## Kontext", "##\xa0Kontext").replace("## Ent", "##\u202fEnt"),
    **{
        f"a title that is no YAML: {title}": GOOD.replace(HEADER, HEADER.replace("title: ", f"title: {title} ", 1))
        for title in ("Why: a cache", "`Redis`", "[a](b)", "@home", "*bold*", "100 %: done", "- dash: x", 'a "b": c')
    },
}


@pytest.mark.parametrize("answer", FORMS.values(), ids=list(FORMS))
def test_what_a_model_puts_around_an_answer_costs_no_second_run(answer: str) -> None:
    decision, text, edits = decided(answer)
    assert decision == Accept(1)
    assert edits
    assert "think" not in text
    assert text.count("adr_id") == text.count(f"\n{TITLE}\n") == 1
    assert text.startswith("---\n")


def test_thoughts_alone_are_no_answer() -> None:
    for answer in (f"<think>{GOOD}", f"<think>{GOOD}</think>\n\nShall I go on?\n\n{MARKER}"):
        assert "Kontext" not in decided(answer)[1]
    assert not isinstance(decided(f"<think>{GOOD}")[0], Accept)
    assert validate_attempt([], "<think>" + "word " * 50 + "</think>Hi", [LengthRule(min_words=5)]).errors
    assert not validate_attempt(
        [], '<think>{"b": 2}</think>\n{"a": 1}', [JsonSchemaRule(schema={"required": ["a"]}, where="whole")]
    ).errors


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        "Models close their thoughts with `</think>`.\n",
        "```html\n<think>\n```\n\ntext\n\n```html\n</think>\n```\n",
        "The tag <think> opens a thought; </think> closes it.\n",
        "```python\n# a comment\nprint()\n```\n",
        '```json\n{"a": 1}\n```\n',
        "```yaml\na: 1\n```\n\nMore text.\n",
        "```markdown\n# A\n```\n\nand\n\n```markdown\n# B\n```\n",
        "# A\n\n## B\n\n# A\n",
        "---\n\nA rule above.\n\n---\n\nA rule below.\n",
        "Here it is:\n\n```markdown\n# A title\n\nText.\n```\n",
        "",
    ],
)
def test_any_other_answer_stays_as_it_is(answer: str) -> None:
    assert normalise_answer(answer).text == answer


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[3] / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_an_ordinary_document_stays_as_it_is(path: Path) -> None:
    assert normalise_answer(path.read_text()).edits == ()


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "```", "```yaml\n", HEADER, "# A\n", "---\n", "a: b: c\n", "\n", "x "])
    )
)
def test_no_text_breaks_an_edit_and_most_are_done_at_once(pieces: list[str]) -> None:
    text = "".join(pieces)
    for _ in range(len(pieces) + 2):
        before, text = text, normalise_answer(text).text
        if text == before:
            return
    raise AssertionError("edits go on for ever")


def test_each_edit_is_named_on_the_attempt() -> None:
    assert decided(FORMS["thoughts"])[2] == ("Removed the model's reasoning (`<think>`)",)
    assert decided(FORMS["in a fence, thoughts before it"])[2][1] == "Took the document out of its code fence"
