"""YAML headers are foreign input (bad inputs 54 to 57): bounded, with a line, and never a crash."""

from __future__ import annotations

import pytest

from tests.unit.enforcement.samples import BODY, codes
from worker.enforcement import ADRStructureValidator, ValidationIssue
from worker.enforcement.documents.frontmatter import HeaderError, read_header

FIELDS = 'adr_id: "1"\ntitle: t\nstatus: s\n'


def issues_of(extra: str) -> list[ValidationIssue]:
    return ADRStructureValidator().validate(f"---\n{FIELDS}{extra}\n---\n{BODY}", {})


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
        read_header("a: b\n--- \nc: d\n")


@pytest.mark.parametrize("value", ["no", "1:20", "2025-01-01", "0x1F", "1e3", "036", ".inf", "true"])
def test_values_stay_the_text_they_are(value: str) -> None:
    root = read_header(f"a: {value}\n")
    assert root is not None
    node = root.get("a")
    assert node is not None
    assert node.value == value


def test_positions_are_characters_also_behind_wide_ones() -> None:
    text = "ä: 😀\nb: 'q'  # c\n"
    root = read_header(text)
    assert root is not None
    node = root.get("b")
    assert node is not None
    assert text[node.start : node.end] == "'q'"
