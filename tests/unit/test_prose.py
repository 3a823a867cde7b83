"""The lint of the project's English."""

import re
from pathlib import Path, PurePosixPath

import pytest

from tests.lab.prose.__main__ import LONGEST_CELL, ROOT, Finding, cells, findings, phrases, too_many
from tests.lab.prose.names import FORBIDDEN, unwanted


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "sentence",
    [
        "The reader is told it.",
        "A rule of its own.",
        "It is no package.",
        "Count what waits.",
        "It\nis no list.",
    ],
)
def test_a_phrase_of_the_list_is_found_on_a_page(tmp_path: Path, sentence: str) -> None:
    assert list(phrases(written(tmp_path / "page.md", f"# Title\n\n{sentence}\n")))


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no package.",
        "It is no longer there.",
        "`is told` is bad.",
        "```\nis told\n```\n",
        "The untold story.",
    ],
)
def test_good_english_and_code_are_left_alone(tmp_path: Path, sentence: str) -> None:
    assert not list(phrases(written(tmp_path / "page.md", f"{sentence}\n")))


def test_docstrings_comments_and_messages_are_read_and_code_is_not(tmp_path: Path) -> None:
    module = '''"""A docstring
that is told."""

told = 1  # a name may be anything
# A comment that goes over
# two lines, of its
# own.
raise ValueError(f"{told} is no port")
'''
    assert [line for line, _ in phrases(written(tmp_path / "module.py", module))] == [2, 8, 6]


def test_comments_of_other_files_are_read(tmp_path: Path) -> None:
    assert list(phrases(written(tmp_path / "a.lua", "local told = 1 -- what waits\n")))
    assert list(phrases(written(tmp_path / "Makefile", "up: ## Mend it\n\ttold\n")))


def test_a_long_cell_of_a_table_is_found(tmp_path: Path) -> None:
    page = written(
        tmp_path / "page.md", f"| a | b |\n|---|---|\n| {'x' * LONGEST_CELL} | {'y' * (LONGEST_CELL + 1)} |\n"
    )
    assert [line for line, _ in cells(page)] == [3]


def test_a_room_may_not_rise_above_its_ceiling() -> None:
    two = [Finding(PurePosixPath("worker/cli/a.py"), line, "said") for line in (1, 2)]
    assert not too_many({"worker/cli": two}, {"worker/cli": 2})
    assert too_many({"worker/cli": two}, {"worker/cli": 1}) == {"worker/cli": two}
    assert too_many({"worker/cli": two}, {}) == {"worker/cli": two}


def test_findings_are_gathered_by_room(tmp_path: Path) -> None:
    (tmp_path / "worker" / "turns" / "record").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    written(tmp_path / "worker" / "turns" / "record" / "a.py", '"""It is told."""\n')
    written(tmp_path / "docs" / "b.md", "It is told.\n")
    assert {finding.room for finding in findings(tmp_path)} == {"worker/turns", "docs/b.md"}


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = [
    word.strip()
    for row in re.findall(r"^- \*\*([a-z][a-z, -]+)\*\*:", GLOSSARY, re.MULTILINE)
    for word in row.split(",")
]
#: What may be between the words of a term: an ending of the first one, and a space, hyphen or underscore.
_BETWEEN = r"(?:s|ed|ing)?[ _\n-]"
PRODUCT = [path for folder in ("api_client", "worker") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_name_in_the_product_has_a_word_that_the_field_does_not_use() -> None:
    left = [f"{path.relative_to(ROOT)}:{line}: {name}: {use}" for path in PRODUCT for line, name, use in unwanted(path)]

    assert not left, "\n".join(left)


@pytest.mark.parametrize("term", TERMS)
def test_each_term_of_the_glossary_is_used_in_the_code_and_on_another_page(term: str) -> None:
    said = re.compile(rf"\b{term.replace(' ', _BETWEEN)}(?:s|es|d|ed|ing)?\b", re.IGNORECASE)
    split = (re.sub(r"([a-z])([A-Z])|_", r"\1 \2", path.read_text(encoding="utf-8")) for path in PRODUCT)
    assert any(said.search(text) for text in split), "no code speaks of it"
    pages = (path for path in (ROOT / "docs").glob("*.md") if path.name != "glossary.md")
    assert any(said.search(path.read_text(encoding="utf-8")) for path in pages), "no other page speaks of it"


def test_no_forbidden_word_is_defined_in_the_glossary() -> None:
    assert {"turn", "lease", "fencing token", "store", "broker"} <= set(TERMS), "the table was read"
    assert not {word for term in TERMS for word in term.split() if word in FORBIDDEN}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("told = 1", "told"),
        ("class TellLater: ...", "tell"),
        ("def f(deaf): ...", "deaf"),
        ("x._pulse = 1", "pulse"),
        ("retold = holdings = 1", ""),
    ],
)
def test_a_forbidden_word_is_found_in_every_kind_of_name(tmp_path: Path, line: str, word: str) -> None:
    found = [use for *_, use in unwanted(written(tmp_path / "module.py", line + "\n"))]
    assert found == ([FORBIDDEN[word]] if word else [])
