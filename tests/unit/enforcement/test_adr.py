"""ADR structure on a real parse (ADR-038 section 3)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.enforcement.samples import ADR, BODY, HEADER, codes
from worker.enforcement import (
    ADRStructureValidator,
    FileExistenceValidator,
    Severity,
    StepMarkerValidator,
    ValidationIssue,
    infer_step,
    validate_attempt,
)
from worker.enforcement.documents.frontmatter import HeaderError, parse_header

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


# What is an ADR and what is not: byte order marks, open headers, headings about ADRs, excerpts and templates.

ALL = (StepMarkerValidator(), VALIDATOR)
MARKER = "\n<!-- STEP: generate -->\n"
OPEN = HEADER.removesuffix("---\n")  # a header without its second ---
FIELDS = OPEN.removeprefix("---\n")


def test_a_byte_order_mark_hides_no_fault_and_makes_none() -> None:
    faulty = ADR.replace("status: Proposed\n", "").replace("# ADR-040: Ein Cache", "# Ein Cache")
    for text in (ADR, BODY, faulty, faulty.replace("\n", "\r\n"), "Kein ADR."):
        assert found("\ufeff" + text) == found(text)
    assert found("\ufeff" + faulty) == ["MISSING_ADR_FIELD"]
    assert found("Liegt bei.", files={"ADR-040.md": "\ufeff" + faulty}) == ["MISSING_ADR_FIELD"]


def test_the_header_behind_a_byte_order_mark_is_replaced() -> None:
    for fault in ("", "status: [Proposed\n"):
        broken = "\ufeff" + ADR.replace("status: Proposed\n", fault) + MARKER
        assert validate_attempt([validate_attempt([], broken, ALL)], HEADER, ALL).answer == ADR + MARKER


@pytest.mark.parametrize("gap", ["\n", ""])
@pytest.mark.parametrize("rule", ["", "\n---\n\nEin Schluss.\n"])
def test_a_header_nobody_closed_is_told_and_the_new_one_takes_its_place(gap: str, rule: str) -> None:
    broken = OPEN + gap + BODY.lstrip("\n") + rule + MARKER
    first = validate_attempt([], broken, ALL)
    (issue,) = first.errors
    assert (issue.code, issue.part) == ("INVALID_YAML", "yaml_header")
    after = validate_attempt([first], HEADER, ALL)
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
    first = validate_attempt([], broken, ALL)
    assert codes(first.errors) == ["INVALID_YAML"]
    assert validate_attempt([first], HEADER, ALL).answer == ADR + MARKER


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
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_a_header_that_is_put_in_is_the_only_thing_that_changes(text: str) -> None:
    first = validate_attempt([], text + MARKER, ALL)
    if {issue.part for issue in first.errors} != {"yaml_header"}:
        return
    after = validate_attempt([first], HEADER, ALL).answer
    missing = set(text.splitlines()) - set(after.splitlines())
    assert all(line in {*FIELDS.splitlines(), "---", "adr_id: 1"} for line in missing)


def test_many_open_headers_take_linear_time() -> None:
    def looks(count: int) -> int:
        class Counting(list[str]):
            reads = 0

            def __getitem__(self, key: Any) -> Any:
                Counting.reads += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
                return super().__getitem__(key)

        from worker.enforcement.documents.adr import find_header_end

        lines = Counting(("---\nadr_id: 1\ntitle: x\n\n# ADR-041: Y\n\nText ohne Ende\n" * count).split("\n"))
        number = 0
        while number < len(lines):
            number = (find_header_end(lines, number) if lines[number] == "---" else 0) or number + 1
        return Counting.reads

    assert looks(400) < 2.5 * looks(200)


# YAML headers are foreign input (bad inputs 54 to 57): bounded, with a line, and never a crash.

REQUIRED = 'adr_id: "1"\ntitle: t\nstatus: s\n'


def issues_of(extra: str) -> list[ValidationIssue]:
    return ADRStructureValidator().validate(f"---\n{REQUIRED}{extra}\n---\n{BODY}", {})


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, levels)]
    return "\n".join(lines)


def test_an_alias_bomb_is_not_expanded_and_many_aliases_are_refused() -> None:
    assert issues_of(bomb(9)) == []
    assert codes(issues_of(bomb(20))) == ["YAML_TOO_COMPLEX"]


@pytest.mark.parametrize("extra", ["a: &a [*a]", "a: &a {b: *a}", "<<: &m {<<: *m}"])
def test_an_alias_of_itself_is_read(extra: str) -> None:
    assert issues_of(extra) == []


@pytest.mark.parametrize(
    "extra", ["a: " + "[" * 3000, "a: " + "{a: " * 3000, "\n".join(" " * n + "a:" for n in range(100))]
)
def test_deep_nesting_is_refused(extra: str) -> None:
    assert codes(issues_of(extra))[0] in ("YAML_TOO_COMPLEX", "INVALID_YAML")


@pytest.mark.parametrize("extra", ["a: " + "x" * 70_000, "a: [" + "x, " * 3000 + "]"])
def test_an_endless_header_is_refused(extra: str) -> None:
    assert codes(issues_of(extra)) == ["YAML_TOO_COMPLEX"]


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ("a: !!python/object/apply:os.system [id]", 5),
        ("a: !mine x", 5),
        ("a: b\n\tc: d", 6),
        ("a: [", 6),
        ("a: 'x", 6),
        ("a: *nothing", 5),
        ("a: b: c", 5),
    ],
)
def test_custom_tags_tabs_and_broken_syntax_are_issues_with_a_line(extra: str, line: int) -> None:
    (issue,) = issues_of(extra)
    assert (issue.code, issue.line) == ("INVALID_YAML", line)
    assert issue.message.startswith("The ADR's header is not valid YAML")


@pytest.mark.parametrize("extra", ["a: \0", "a: \ud800", "a: \x07"])
def test_unreadable_characters_are_an_issue(extra: str) -> None:
    assert codes(issues_of(extra)) == ["INVALID_YAML"]


def test_a_key_twice_is_told_with_its_line() -> None:
    (issue,) = issues_of("status: t")
    assert (issue.code, issue.severity, issue.line) == ("DUPLICATE_KEY", "warning", 5)


def test_several_documents_are_refused() -> None:
    with pytest.raises(HeaderError, match="several documents"):
        parse_header("a: b\n--- \nc: d\n")


@pytest.mark.parametrize("value", ["no", "1:20", "2025-01-01", "0x1F", "1e3", "036", ".inf", "true"])
def test_values_stay_the_text_they_are(value: str) -> None:
    root = parse_header(f"a: {value}\n")
    assert root is not None
    node = root.find_value("a")
    assert node is not None
    assert node.value == value


def test_positions_are_characters_also_behind_wide_ones() -> None:
    text = "ä: 😀\nb: 'q'  # c\n"
    root = parse_header(text)
    assert root is not None
    node = root.find_value("b")
    assert node is not None
    assert text[node.start : node.end] == "'q'"


# The four seed ADRs, by shape: their headers and the outline of their sections.

CRITERIA = [
    "### 1. Verifier\n\n- [x] a\n- [x] b\n\n### 2. Kanal\n\n- [x] c\n",
    "### Flow\n- [ ] Template hat keine {% if step %}\n- [ ] Step-Marker <!-- STEP: X -->\n\n### Rest\n- [ ] c\n",
    "### Funktional\n\n- [ ] a\n- [ ] b\n- [ ] c\n",
    "### Tests\n\n- [ ] a\n\n### Cleanup\n\n- [ ] b\n- [ ] c\n",
]
MODIFIED = ["src/helix/api/routes/openai.py", "templates/consultant/session.md.j2"]
DIAGRAM = "```\n┌──────────┐\n│ ## Kontext │\n└──────────┘\n```\n"
CODE = '```python\ntext = """\n---\nadr_id: x\n---\n"""\nif "## Akzeptanzkriterien" in text:\n    pass\n```\n'


@pytest.mark.parametrize("rule", ["", "---\n\n"])
@pytest.mark.parametrize("criteria", CRITERIA)
def test_an_adr_like_the_seeds_is_right_but_for_its_missing_files(criteria: str, rule: str, tmp_path: Path) -> None:
    text = (
        '---\nadr_id: "034"\ntitle: "Titel - mit Strich"\nstatus: Proposed\n\ndomain: helix\n\nfiles:\n'
        f"  create:\n    - ~/.claude/hooks/session-end.sh\n  modify:\n    - {MODIFIED[0]}\n    - {MODIFIED[1]}\n"
        "  delete: []\n\ndepends_on:\n  - ADR-029  # Session Persistence\n---\n\n# ADR-034: Titel\n\n"
        f"## Status\n\nProposed\n\n{rule}## Kontext\n\n### Das Problem\n\nText.\n\n{DIAGRAM}\n{rule}"
        f"## Entscheidung\n\n### Wir entscheiden\n\nText.\n\n## Implementation\n\n{CODE}\n{rule}"
        f"## Akzeptanzkriterien\n\n{criteria}\n{rule}## Konsequenzen\n\nText.\n"
    )
    assert ADRStructureValidator().validate(text, {}) == []
    issues = FileExistenceValidator(helix_root=tmp_path).validate(text, {})
    assert codes(issues) == ["FILE_NOT_FOUND"] * 2
    assert [issue.message.rpartition(" ")[2] for issue in issues] == MODIFIED
