"""ADR structure on a real parse (ADR-038 section 3)."""

from __future__ import annotations

import pytest

from tests.unit.enforcement.samples import ADR, BODY, HEADER, codes
from worker.enforcement import ADRStructureValidator

VALIDATOR = ADRStructureValidator()
NOTHING: list[str] = []


def found(text: str, **context: object) -> list[str]:
    return codes(VALIDATOR.validate(text, context))


def headed(header: str) -> str:
    return f"---\n{header}---\n{BODY}"


def test_an_answer_without_an_adr_has_nothing_to_be_judged() -> None:
    assert found("Was soll gebaut werden?\n\n---\n\nADR-38 sagt dazu nichts.") == NOTHING


@pytest.mark.parametrize(
    "wrap",
    [
        "{}",
        "Einleitung.\n\n{}",
        "Hier das ADR:\n\n```markdown\n{}```\n\nFertig.",
        "```md\n{}```\n<!-- STEP: generate -->",
    ],
)
def test_an_adr_is_found_in_the_answer_and_judged(wrap: str) -> None:
    assert found(wrap.format(ADR)) == NOTHING
    assert found(wrap.format(ADR.replace("## Entscheidung", "## Anderes"))) == ["MISSING_ADR_SECTION"]


@pytest.mark.parametrize(
    "header",
    [
        'title: t\nstatus: s\nadr_id: "1"\n',
        '# ein Kommentar\nadr_id: "1"\ntitle: t\nstatus: s\n',
        ' adr_id: "1"\n title: t\n status: s\n',
        '"adr_id": "1"\n"title": t\n"status": s\n',
        '{adr_id: "1", title: t, status: s}\n',
    ],
)
def test_an_adr_is_recognised_whatever_the_order_and_style_of_its_header(header: str) -> None:
    broken = BODY.replace("## Kontext\n", "## Vorwort\n")
    assert found(f"---\n{header}---\n{broken}") == ["MISSING_ADR_SECTION"]
    assert found(headed(header)) == NOTHING


def test_windows_line_endings_are_read() -> None:
    assert found(ADR.replace("\n", "\r\n")) == NOTHING
    assert found(ADR.replace("## Kontext\n", "## X\n").replace("\n", "\r\n")) == ["MISSING_ADR_SECTION"]


def test_an_adr_in_three_backticks_with_code_blocks_of_its_own_is_read_to_its_end() -> None:
    inner = ADR.replace(
        "Wir nehmen einen Cache.", "So:\n\n```python\nx = 1\n```\n\noder\n\n```\nkein Wort dahinter\n```"
    )
    assert found(f"Hier:\n\n```markdown\n{inner}```\n\nPasst das?\n\n<!-- STEP: generate -->") == NOTHING


def test_a_rule_before_the_header_is_no_header() -> None:
    assert found(f"Vorab.\n\n---\n\nEin Absatz.\n\n{ADR}") == NOTHING
    assert found(f"---\n\nEin Absatz.\n\n{ADR}") == NOTHING
    assert found(f"---\nBitte ergänze den Kopf um\nadr_id: 12\n\n{ADR}") == NOTHING


@pytest.mark.parametrize("first", ["---\n---\n", "---\n# nur ein Kommentar\n---\n", "---\n5\n---\n"])
def test_an_empty_block_before_the_header_is_passed_over(first: str) -> None:
    assert found(f"{first}\n{ADR}") == NOTHING


@pytest.mark.parametrize("header", ["", "# nur ein Kommentar\n", "5\n", "- a\n- b\n"])
def test_a_header_that_is_no_mapping_is_one_issue_and_no_crash(header: str) -> None:
    assert found(headed(header)) == ["INVALID_HEADER"]


def test_a_required_field_that_is_a_list_is_invalid() -> None:
    assert found(headed("adr_id: [a]\ntitle: {a: b}\nstatus: s\n")) == ["INVALID_HEADER", "INVALID_HEADER"]


def test_missing_fields_are_named() -> None:
    (issue,) = VALIDATOR.validate(headed('adr_id: "1"\nstatus: s\n'), {"locale": "de"})
    assert issue.message == "ADR fehlt Pflichtfeld im Header: title"
    assert issue.fix_hint == "Füge 'title' zum YAML-Header hinzu"
    assert issue.line == 2


@pytest.mark.parametrize("empty", ["", ' ""', " ~", " null", " '  '"])
def test_empty_fields_are_told(empty: str) -> None:
    assert found(headed(f'adr_id: "1"\ntitle:{empty}\nstatus: s\n')) == ["EMPTY_ADR_FIELD"]


@pytest.mark.parametrize("content", ["", "<!-- folgt -->\n", "### Nur eine Überschrift\n", "---\n"])
def test_an_empty_section_is_told(content: str) -> None:
    (issue,) = VALIDATOR.validate(ADR.replace("Die Suche ist langsam.\n", content), {})
    assert (issue.code, issue.line) == ("EMPTY_ADR_SECTION", ADR[: ADR.index("## Kontext")].count("\n") + 1)


@pytest.mark.parametrize(
    "heading", ["### Kontext", "# Kontext", "## Kontextualisierung", "```\n## Kontext\n```", "> ## Kontext"]
)
def test_only_a_level_two_heading_with_the_exact_title_is_the_section(heading: str) -> None:
    assert found(ADR.replace("## Kontext", heading)) == ["MISSING_ADR_SECTION"]


@pytest.mark.parametrize("heading", ["## Context", "## KONTEXT", "## Kontext ##", "Kontext\n-------"])
def test_english_titles_and_other_ways_to_write_the_heading_are_accepted(heading: str) -> None:
    assert found(ADR.replace("## Kontext", heading)) == NOTHING


def test_criteria_count_with_subsections_checked_or_not_and_numbered() -> None:
    head, _ = ADR.split("- [ ] schneller")
    assert found(head + "### A\n\n- [x] eins\n* [X] zwei\n\n### B\n\n+ [ ] drei\n") == NOTHING
    assert found(head + "1. eins\n2. zwei\n3) drei\n") == NOTHING
    assert found(head + "- [ ] a\n  - [ ] b\n  - [x] c\n") == NOTHING


def test_too_few_criteria_are_a_warning_in_the_seeds_words() -> None:
    head, _ = ADR.split("- [ ] veraltete")
    (issue,) = VALIDATOR.validate(head, {"locale": "de"})
    assert (issue.code, issue.severity) == ("INSUFFICIENT_CRITERIA", "warning")
    assert issue.message == "ADR hat nur 1 Akzeptanzkriterien (mindestens 3 empfohlen)"


def test_criteria_in_code_or_after_the_section_do_not_count() -> None:
    head, _ = ADR.split("- [ ] schneller")
    assert found(head + "```\n- [ ] a\n- [ ] b\n- [ ] c\n```\n") == ["INSUFFICIENT_CRITERIA"]
    assert found(head + "- [ ] a\n\n## Danach\n\n- [ ] b\n- [ ] c\n") == ["INSUFFICIENT_CRITERIA"]


def test_the_first_mention_of_a_section_is_not_the_section() -> None:
    mention = "Siehe ## Akzeptanzkriterien und\n`## Akzeptanzkriterien`."
    assert found(ADR.replace("Die Suche ist langsam.", mention)) == NOTHING


def test_an_unquoted_id_with_leading_zeros_stays_text_and_is_a_warning() -> None:
    (issue,) = VALIDATOR.validate(headed("adr_id: 036\ntitle: t\nstatus: s\n"), {})
    assert (issue.code, issue.severity) == ("UNQUOTED_ADR_ID", "warning")
    assert "036" in issue.message
    assert found(headed("adr_id: 36\ntitle: no\nstatus: 2025-01-01\n")) == NOTHING


def test_a_heading_without_a_header_is_an_adr_without_a_header() -> None:
    assert found(BODY) == ["MISSING_YAML_HEADER"]
    assert found("```\n" + BODY + "```\n") == NOTHING


def test_a_file_named_adr_must_hold_one() -> None:
    issues = VALIDATOR.validate(
        "Liegt bei.", {"files": {"ADR-001.md": "Nur Text.", "notes.md": "Auch.", "a.py": HEADER}}
    )
    assert [(issue.code, issue.file) for issue in issues] == [("MISSING_YAML_HEADER", "ADR-001.md")]


def test_an_adr_in_a_file_is_judged_with_file_and_line() -> None:
    (issue,) = VALIDATOR.validate("Liegt bei.", {"files": {"ADR-001.md": ADR.replace("## Entscheidung", "## X")}})
    assert (issue.code, issue.file, issue.line) == ("MISSING_ADR_SECTION", "ADR-001.md", 1)


def test_the_same_text_as_answer_and_file_is_judged_once() -> None:
    broken = ADR.replace("## Entscheidung", "## X")
    assert found(broken, files={"response.md": broken}) == ["MISSING_ADR_SECTION"]


def test_two_adrs_are_judged_apart() -> None:
    other = ADR.replace("## Kontext", "## X").replace("040", "041")
    issues = VALIDATOR.validate(f"{ADR}\n{other}", {})
    assert codes(issues) == ["MISSING_ADR_SECTION"]
    assert issues[0].line == ADR.count("\n") + 2


def test_more_adrs_than_any_answer_has_are_refused_whole() -> None:
    assert found(ADR * 21) == ["TOO_MANY_ADRS"]


def test_adr_structure_has_no_fallback() -> None:
    assert VALIDATOR.apply_fallback(BODY, {}) is None


@pytest.mark.parametrize(("locale", "title"), [("en", "Decision"), ("de", "Entscheidung")])
def test_an_adr_that_shows_no_language_is_asked_for_sections_in_the_language_of_the_feedback(
    locale: str, title: str
) -> None:
    found = ADRStructureValidator(locale).validate(f"{HEADER}\n# ADR-040: Cache\n", {})
    assert f"## {title}" in [issue.part for issue in found]
