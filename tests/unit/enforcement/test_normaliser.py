"""Before an answer is judged, declared edits take off what models put around it; nothing else changes a byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.enforcement.samples import ADR, HEADER
from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    Fallback,
    Policy,
    Retry,
    StepMarkerValidator,
    decide_next,
    validate_attempt,
)
from worker.enforcement.documents.normaliser import NormalisedText, normalise_answer
from worker.enforcement.policy import Decision
from worker.enforcement.repair import repair_attempt
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
    "in channels of Harmony": "<|channel|>analysis<|message|>I think.<|end|>"
    f"<|start|>assistant<|channel|>final<|message|>{GOOD}<|return|>",
    "in the words of Granite": f"Here is my thought process:\nI think.\n\nHere is my response:\n\n{GOOD}",
    "in a fence": f"```markdown\n{ADR}```\n\n{MARKER}\n",
    "in a fence without a word": f"```\n{ADR}```\n\n{MARKER}",
    "in a fence with its marker": f"```md\n{GOOD}```\n",
    "in a fence of an unknown word": f"```adr\n{ADR}```\n\n{MARKER}\n",
    "in a fence of code": f"```python\n{ADR}```\n\n{MARKER}\n",
    "in a fence of YAML": f"~~~yaml\n{ADR}~~~~\n\n{MARKER}\n",
    "in a fence, thoughts before it": f"<think>x</think>\n```markdown\n{GOOD}```",
    "its header in a fence": f"```yaml\n{HEADER}```\n{BODY}\n{MARKER}\n",
    "its header in a fence without rules": "```yaml\n" + HEADER.replace("---\n", "") + f"```\n{BODY}\n{MARKER}\n",
    "its header twice": f"{HEADER}\n{HEADER}{BODY}\n{MARKER}\n",
    "a second header without an id": f"{HEADER}\n---\nstatus: proposed\n---\n{BODY}\n{MARKER}\n",
    "a poor header first": f"---\nstatus: proposed\n---\n\n{HEADER}{BODY}\n{MARKER}\n",
    "its title above the header": f"{TITLE}\n\n{HEADER}{BODY}\n{MARKER}\n",
    "its title above the header alone": f"{TITLE}\n\n{HEADER}{BODY.replace(TITLE, '', 1)}\n{MARKER}\n",
    "its title twice": f"{HEADER}{BODY.replace(TITLE, f'{TITLE}{chr(10)}{chr(10)}{TITLE}', 1)}\n{MARKER}\n",
    "its header once more at its end": f"{ADR}\n{HEADER}\n{MARKER}\n",
    "its header and title once more at its end": f"{ADR}\n{HEADER}\n{TITLE}\n\n{MARKER}\n",
    "a byte order mark": f"\ufeff{GOOD}",
    "a blank without a width": f"\u200b{GOOD}",
    "line ends of Windows": GOOD.replace("\n", "\r\n"),
    "all of Windows around a fence": f"\ufeff```markdown\n{GOOD}```".replace("\n", "\r\n"),
    "hard blanks in headings": GOOD.replace("## Kontext", "##\xa0Kontext").replace("## Ent", "##\u202fEnt"),
    **{
        f"a title that is no YAML: {title}": GOOD.replace(HEADER, HEADER.replace("title: ", f"title: {title} ", 1))
        for title in (
            "Why: a cache",
            "`Redis`",
            "[a](b)",
            "@home",
            "*bold*",
            "100 %: done",
            "- dash: x",
            'a "b": c',
            '"Redis" as a cache',
            ">50 % less",
        )
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


def test_a_document_below_a_sentence_comes_out_of_its_fence_too() -> None:
    assert decided(f"```markdown\nHere it is.\n\n{GOOD}```")[:2] == (Accept(1), f"Here it is.\n\n{GOOD.rstrip()}")


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
        "Hard\xa0blanks\u202fin text stay, and\ra lone return.\n\n```\n#\xa0no heading\n```\n",
        "```python\n# a comment\nprint()\n```\n",
        "```python\n# Title\n\n## Section\n\nprint()\n```\n",
        "```\n# install\napt-get install x\n```\n",
        "```c\n# include <a.h>\n\nint x;\n```\n",
        "```yaml\n---\napiVersion: v1\nkind: Pod\n---\n# Second\n\nkind: Service\n```\n",
        "---\ntitle: a: b\njust words\n---\n",
        f"{HEADER}# A\n\ntext\n\n---\nother: header\n---\n",
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


FORM_PIECES = [
    "<think>",
    "</think>\n",
    "```",
    "```yaml\n",
    "~~~md\n",
    HEADER,
    "# A\n",
    "---\n",
    "a: b: c\n",
    "\r\n",
    "\ufeff",
    "##\xa0B\n",
]
OTHER_PIECES = [
    "A sentence.\n",
    "## B\n",
    "- a: b\n",
    "\n",
    "a\xa0b",
    "`</think>`",
    "> <think>\n",
    "| a | b |\n",
    "x\ry",
    "<b>",
    "    code\n",
    MARKER,
]


@given(st.lists(st.sampled_from(FORM_PIECES + OTHER_PIECES), max_size=24))
def test_a_normalised_text_is_settled(pieces: list[str]) -> None:
    found = normalise_answer("".join(pieces))
    assert normalise_answer(found.text) == NormalisedText(found.text)
    assert bool(found.edits) == (found.text != "".join(pieces))
    assert all(edit.count > 0 and edit.lines > 0 for edit in found.edits)


@given(st.lists(st.sampled_from([*OTHER_PIECES, "```\ncode\n```\n", "# A\n\n", "---\n\n"]), max_size=24))
def test_a_text_without_these_forms_stays_byte_for_byte(pieces: list[str]) -> None:
    text = "".join(["A first sentence.\n\n", *pieces])
    assert normalise_answer(text) == NormalisedText(text)


def test_each_edit_is_named_and_counted_on_the_attempt() -> None:
    assert decided(FORMS["thoughts"])[2] == ("reasoning: removed the model's reasoning (`<think>`) (1×, 7 lines)",)
    first, second = decided(FORMS["in a fence, thoughts before it"])[2]
    assert first == "reasoning: removed the model's reasoning (`<think>`) (1×, 1 line)"
    assert second.startswith("fence: took the document out of its code fence (1×, ")
    assert decided(f"\ufeff{GOOD}".replace("\n", "\r\n"))[2] == (
        "byte_order_mark: removed the byte order mark (1×, 1 line)",
        f"line_ends: replaced Windows line ends ({GOOD.count(chr(10))}×, {GOOD.count(chr(10))} lines)",
    )
    german = validate_attempt([], f"<think>x</think>{GOOD}", RULES, context={"locale": "de"}).edits
    assert german == ("reasoning: Gedanken des Modells entfernt (`<think>`) (1×, 1 Zeile)",)


def test_an_answer_of_reasoning_alone_is_asked_for_again_and_never_passes() -> None:
    for text in (f"<think>{GOOD}", "<think>Hm.</think>\n", "Only thoughts.\n</think>\n"):
        never_passes(text, "ONLY_REASONING")


@pytest.mark.parametrize(
    "text",
    [
        "<!-- STEP: done -->",
        "\n \n<!-- STEP: what -->\n",
        "\ufeff\u200b",
        "\n\u00ad\n<!-- STEP: done -->",
        "<!-- STEP: done -->\n\u200b",
        "<!-- STEP: what -->\u200b<!-- STEP: done -->",
        "<!-- STEP: x -->",
    ],
)
def test_an_answer_of_a_step_marker_alone_is_asked_for_again_and_never_passes(text: str) -> None:
    never_passes(text, "ONLY_MARKER")


def never_passes(text: str, code: str) -> None:
    """Also where no rule judges: nobody is shown an empty answer as if that were one."""
    for rules in ([], [StepMarkerValidator()]):
        history = [validate_attempt([], text, rules, context={"locale": "en"})]
        decision = decide_next(history, Policy(locale="en"))
        assert isinstance(decision, Retry)
        assert code in decision.feedback
        assert "Send only" not in decision.feedback
        history += [validate_attempt(history, text, rules) for _ in range(2)]
        last = decide_next(history, Policy(locale="en"))
        assert isinstance(last, Fallback)
        assert not isinstance(decide_next(history, Policy(default=["warn"])), Accept), "no policy tolerates it"
        assert not repair_attempt(history[-1], history, [StepMarkerValidator()], {}).accepted
        good = validate_attempt(history[:1], "Hello. <!-- STEP: done -->", rules)
        assert decide_next([*history[:1], good]) == Accept(2)
        assert good.answer == "Hello. <!-- STEP: done -->"


def test_an_unclosed_block_behind_an_answer_is_a_warning() -> None:
    attempt = validate_attempt([], "Hello.\n\n<think>\nShould I say more?", [], context={"locale": "en"})
    assert attempt.answer == "Hello.\n\n"
    assert [(issue.code, issue.is_error) for issue in attempt.issues] == [("UNCLOSED_REASONING", False)]
    assert attempt.edits == (
        "unclosed_reasoning: removed the model's reasoning up to the end: `<think>` without `</think>` (1×, 2 lines)",
    )
    assert decide_next([attempt]) == Accept(1)
