"""The closed table of codes, and the documents that list it."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

import worker.enforcement
from worker.enforcement import CODES, ResponseValidator, Severity, ValidationIssue
from worker.enforcement.rules.codes import RULE_CODES
from worker.enforcement.validators.codes import clip, issue

DOCS = Path(__file__).parents[3] / "docs"

#: ADR-038's eight.
SEEDS = {
    "MISSING_STEP_MARKER",
    "INVALID_STEP",
    "MISSING_ADR_FIELD",
    "INVALID_YAML",
    "MISSING_YAML_HEADER",
    "MISSING_ADR_SECTION",
    "INSUFFICIENT_CRITERIA",
    "FILE_NOT_FOUND",
}


def values_for(code: str) -> dict[str, str]:
    """A value for each name in the code's templates."""
    texts = (*CODES[code].de, *CODES[code].en)
    return {name: "wert" for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


def test_the_seeds_codes_are_all_there_with_their_severity() -> None:
    assert set(CODES) >= SEEDS
    assert [code for code in SEEDS if CODES[code].severity is Severity.WARNING] == ["INSUFFICIENT_CRITERIA"]


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_words_in_both_languages_with_the_same_values(code: str) -> None:
    entry, values = CODES[code], values_for(code)
    german, english = issue(code, "de", **values), issue(code, "en", **values)  # type: ignore[arg-type]
    assert german.severity is english.severity is entry.severity
    assert german.message != english.message
    assert "{" not in german.message + german.fix_hint + english.message + english.fix_hint
    assert entry.when.endswith(".")


def test_every_code_of_the_table_is_used_and_no_other() -> None:
    package = Path(worker.enforcement.__file__).parent
    source = "\n".join(file.read_text() for file in package.rglob("*.py") if file.name != "codes.py")
    written = set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', source))
    assert {*CODES, *RULE_CODES} <= written
    assert {code for code in written if f' issue("{code}"' in source} <= set(CODES)
    assert {code for code in written if f'rule_issue("{code}"' in source} <= set(RULE_CODES)


def test_the_document_lists_every_code_with_its_severity_occasion_and_repair() -> None:
    text = (DOCS / "enforcement.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", text, re.MULTILINE))
    assert list(rows) == list(CODES)
    for code, entry in CODES.items():
        severity, when, _, _, repair = (cell.strip() for cell in rows[code].split(" | "))
        assert (severity, when, repair) == (str(entry.severity), entry.when, entry.repair or "Only the agent.")


def test_the_documents_example_messages_are_what_users_see() -> None:
    text = (DOCS / "enforcement.md").read_text()
    for code, cells in re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", text, re.MULTILINE):
        message = cells.split(" | ")[3].strip()
        pattern = re.escape(CODES[code].en[0])
        assert re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", pattern), message), code


def test_the_example_of_a_validator_in_the_documents_works() -> None:
    (example,) = re.findall(r"```python\n(from collections.*?)```", (DOCS / "validators.md").read_text(), re.DOTALL)
    space: dict[str, object] = {}
    exec(example, space)
    assert len([line for line in example.splitlines() if line.startswith(("class", " "))]) <= 12
    made = space["CitesSource"]
    assert isinstance(made, type)
    validator = made()
    assert isinstance(validator, ResponseValidator)
    (found,) = validator.validate("Ohne Beleg.", {})
    assert isinstance(found, ValidationIssue)
    assert validator.validate("Siehe [1](https://example.org).", {}) == []


@pytest.mark.parametrize(
    ("text", "shown"), [("a\nb", "a b"), ("\x1b[2J", " [2J"), ("x" * 100, "x" * 79 + "…"), ("ä", "ä"), ("", "")]
)
def test_foreign_text_in_messages_is_short_and_printable(text: str, shown: str) -> None:
    assert clip(text) == shown
