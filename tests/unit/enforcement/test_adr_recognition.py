"""What is an ADR and what is not: byte order marks, open headers, headings about ADRs, excerpts and templates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.enforcement.samples import ADR, BODY, HEADER, codes
from worker.enforcement import ADRStructureValidator, Severity, StepMarkerValidator, examine, infer_step, judge

VALIDATOR = ADRStructureValidator()
ALL = (StepMarkerValidator(), VALIDATOR)
MARKER = "\n<!-- STEP: generate -->\n"
OPEN = HEADER.removesuffix("---\n")  # a header without its second ---
FIELDS = OPEN.removeprefix("---\n")


def found(text: str, **context: object) -> list[str]:
    return codes(VALIDATOR.validate(text, context))


def test_a_byte_order_mark_hides_no_fault_and_makes_none() -> None:
    faulty = ADR.replace("status: Proposed\n", "").replace("# ADR-040: Ein Cache", "# Ein Cache")
    for text in (ADR, BODY, faulty, faulty.replace("\n", "\r\n"), "Kein ADR."):
        assert found("\ufeff" + text) == found(text)
    assert found("\ufeff" + faulty) == ["MISSING_ADR_FIELD"]
    assert found("Liegt bei.", files={"ADR-040.md": "\ufeff" + faulty}) == ["MISSING_ADR_FIELD"]


def test_a_byte_order_mark_stays_when_the_header_behind_it_is_replaced() -> None:
    for fault in ("", "status: [Proposed\n"):
        broken = "\ufeff" + ADR.replace("status: Proposed\n", fault) + MARKER
        assert judge([judge([], broken, ALL)], HEADER, ALL).answer == "\ufeff" + ADR + MARKER


@pytest.mark.parametrize("gap", ["\n", ""])
@pytest.mark.parametrize("rule", ["", "\n---\n\nEin Schluss.\n"])
def test_a_header_nobody_closed_is_told_and_the_new_one_takes_its_place(gap: str, rule: str) -> None:
    broken = OPEN + gap + BODY.lstrip("\n") + rule + MARKER
    first = judge([], broken, ALL)
    (issue,) = first.errors
    assert (issue.code, issue.part) == ("INVALID_YAML", "yaml_header")
    after = judge([first], HEADER, ALL)
    assert not after.errors
    assert after.answer.count("adr_id") == 1
    assert after.answer.endswith(BODY.lstrip("\n") + rule + MARKER)


@pytest.mark.parametrize(
    "text",
    [
        "Zwei Punkte.\n\n---\n\nadr_id: fehlt noch.\n\nSoll ich weitermachen?\n",
        "---\nadr_id: das ist das Pflichtfeld\n\nMehr nicht.\n",
        "Oben.\n\n---\n\n## Teil\n\nText\n\n---\n\nUnten.\n",
    ],
)
def test_a_rule_before_words_about_a_header_is_no_open_header(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize("comment", ["# siehe ADR-036", "# ADR-036 ersetzt", "## Felder"])
def test_a_comment_in_a_header_closes_nothing(comment: str) -> None:
    assert found(ADR.replace("title:", f"{comment}\ntitle:")) == []
    assert found(ADR.replace("title:", f"{comment}\n\ntitle:")) == []


def test_a_broken_header_that_is_closed_is_replaced_up_to_its_end() -> None:
    broken = ADR.replace('"Ein Cache"', '"Ein Cache\n# offen').replace("\n# ADR-040", "\n# ADR-040") + MARKER
    first = judge([], broken, ALL)
    assert codes(first.errors) == ["INVALID_YAML"]
    assert judge([first], HEADER, ALL).answer == ADR + MARKER


@pytest.mark.parametrize(
    "heading",
    ["ADR-Übersicht", "ADR-Prozess", "ADR-based planning", "ADR-038: Zusammenfassung", "ADR-038 – Summary", "ADRs"],
)
def test_a_heading_about_adrs_makes_no_adr(heading: str) -> None:
    assert found(f"# {heading}\n\nZwölf ADRs.\n") == []
    assert found("Liegt bei.", files={"ADR-038.md": f"# {heading}\n\nZwölf.\n"}) == ["MISSING_YAML_HEADER"]


@pytest.mark.parametrize("heading", ["ADR-40: Ein Cache", "ADR-040", "ADR-038: Zusammenfassungen im Index"])
def test_a_heading_with_a_number_makes_one(heading: str) -> None:
    assert "MISSING_YAML_HEADER" in found(f"# {heading}\n\nText.\n")
    assert found(HEADER + BODY.replace("ADR-040: Ein Cache", heading)) == []


TEMPLATE = """---
adr_id: "NNN"
title: <Titel>
status: Proposed
---

# ADR-NNN: <Titel>

## Kontext

[Was ist das Problem?]

## Entscheidung

...

## Akzeptanzkriterien

- [ ] <Kriterium 1>
- [ ] ...
"""


@pytest.mark.parametrize(
    "shown",
    [
        HEADER,
        HEADER.replace("title", "# title"),
        TEMPLATE,
        TEMPLATE.replace("NNN", "040"),
        '---\nadr_id: "{{ nr }}"\ntitle: TODO\nstatus: Proposed\n---\n\n## Kontext\n\n## Entscheidung\n',
        "# ADR-040: Ein Cache\n",
    ],
)
def test_an_excerpt_or_a_template_in_a_fence_is_a_warning(shown: str) -> None:
    text = f"So sieht das aus:\n\n```markdown\n{shown}```\n\nSoll ich es schreiben?\n"
    (issue,) = VALIDATOR.validate(text, {})
    assert (issue.code, issue.severity) == ("ADR_EXCERPT", Severity.WARNING)
    assert (issue.line, issue.part) == (4, "")
    assert infer_step(text) == "what"


def test_an_excerpt_beside_an_adr_is_not_judged_with_it() -> None:
    assert found(f"So:\n\n```markdown\n{HEADER}```\n\nUnd hier:\n\n{ADR}") == ["ADR_EXCERPT"]


@pytest.mark.parametrize(
    "fault",
    [
        ADR.replace("status: Proposed\n", ""),
        ADR.replace("Wir nehmen einen Cache.", ""),
        TEMPLATE.replace("...", "Wir nehmen Redis.", 1).replace("status: Proposed\n", ""),
        HEADER.replace("status: Proposed\n", "") + "\nEin Satz.\n",
    ],
)
def test_a_faulty_adr_in_a_fence_is_no_excerpt(fault: str) -> None:
    errors = [i for i in VALIDATOR.validate(f"Hier:\n\n```markdown\n{fault}```\n", {}) if i.is_error]
    assert errors


@pytest.mark.parametrize("text", [HEADER, f"```markdown\n{TEMPLATE}```\n"])
def test_an_excerpt_outside_of_a_fence_or_in_an_adr_file_is_judged(text: str) -> None:
    assert any(i.is_error for i in VALIDATOR.validate("Liegt bei.", {"files": {"ADR-040.md": text}}))
    if not text.startswith("```"):
        assert any(i.is_error for i in VALIDATOR.validate(text, {}))


@pytest.mark.parametrize(
    "nothing",
    [
        "<!-- TODO\nspäter -->",
        "<!--\n\n- später\n\n-->",
        "\u200b",
        "\u200b\n\ufeff\n",
        "<!-- a --> <!--\nb\n-->",
        "<!-- c",
    ],
)
def test_a_comment_and_characters_without_a_width_are_no_content(nothing: str) -> None:
    assert "EMPTY_ADR_SECTION" in found(ADR.replace("Die Suche ist langsam.", nothing))


@pytest.mark.parametrize(
    "something", ["<!-- a\nb --> Text", "`<!--` beginnt einen Kommentar.", "```html\n<!-- x -->\n```", "ü\u200b"]
)
def test_text_beside_a_comment_is_content(something: str) -> None:
    assert found(ADR.replace("Die Suche ist langsam.", something)) == []


def test_criteria_in_a_comment_do_not_count() -> None:
    head, _ = ADR.split("- [ ] schneller")
    assert found(head + "Es gilt:\n\n<!--\n- [ ] a\n- [ ] b\n- [ ] c\n-->\n") == ["INSUFFICIENT_CRITERIA"]


PIECES = [
    OPEN,
    HEADER,
    BODY,
    "---\n",
    "\n",
    "\nEin Satz.\n",
    "# ADR-041: Y\n",
    "## Kontext\n",
    "adr_id: 1\n",
    "\n<!-- a b\n",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.sampled_from(["", "\ufeff"]))
def test_a_header_that_is_put_in_is_the_only_thing_that_changes(text: str, mark: str) -> None:
    first = judge([], mark + text + MARKER, ALL)
    if {issue.part for issue in first.errors} != {"yaml_header"}:
        return
    after = judge([first], HEADER, ALL).answer
    assert after.startswith(mark)
    missing = set(text.splitlines()) - set(after.splitlines())
    assert all(line in {*FIELDS.splitlines(), "---", "adr_id: 1"} for line in missing)


def test_many_open_headers_take_linear_time() -> None:
    def looks(count: int) -> int:
        class Counting(list[str]):
            reads = 0

            def __getitem__(self, key: Any) -> Any:
                Counting.reads += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
                return super().__getitem__(key)

        from worker.enforcement.documents.adr import header_end

        lines = Counting(("---\nadr_id: 1\ntitle: x\n\n# ADR-041: Y\n\nText ohne Ende\n" * count).split("\n"))
        number = 0
        while number < len(lines):
            number = (header_end(lines, number) if lines[number] == "---" else 0) or number + 1
        return Counting.reads

    assert looks(400) < 2.5 * looks(200)


def test_examining_an_answer_with_an_excerpt_brings_no_error() -> None:
    assert codes(examine(f"So:\n\n```markdown\n{HEADER}```\n{MARKER}", ALL)) == ["ADR_EXCERPT"]
