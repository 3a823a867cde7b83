"""The checks of names and English (``tests/lab/prose.py``), and the glossary."""

import re
from pathlib import Path

import pytest

from tests.lab.prose import (
    LONGEST_CELL,
    ROOT,
    count_homonyms,
    find_long_cells,
    find_openings,
    find_problems,
    list_methods,
)


@pytest.mark.parametrize(
    "text",
    ["It is stored.", "Which turns are due.", "What waits, and why.", "The same for models.", "One row.", "How long."],
)
def test_a_docstring_that_begins_without_a_noun_or_verb_is_found(text: str) -> None:
    assert list(find_openings(f'def f():\n    """{text}"""\n')) == [(1, text)]


@pytest.mark.parametrize("text", ["Return the turns that are due.", "Itemise the bill.", "A run of an agent."])
def test_a_docstring_with_a_verb_or_a_noun_first_is_left_alone(text: str) -> None:
    assert not list(find_openings(f'class A:\n    """{text}"""\n'))


def test_a_long_cell_of_a_table_is_found() -> None:
    page = f"| a | b |\n|---|---|\n| {'x' * LONGEST_CELL} | {'y' * (LONGEST_CELL + 1)} |\n"
    assert list(find_long_cells(page)) == [(3, LONGEST_CELL + 1)]


def test_homonyms_are_unrelated_functions_and_no_methods_that_override_others() -> None:
    source = """
class Port(Protocol):
    def poll(self): ...
class One(Port):
    def poll(self): ...
class Other(Generic[Port], Port):
    def poll(self): ...
class Foreign:
    def poll(self): ...
def read(): ...
"""
    assert count_homonyms(list(list_methods(source))) == {"poll": 2, "read": 1}


def test_too_many_one_word_names_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "a.py").write_text("def read(): ...\ndef read_turn(): ...\n")
    [problem] = find_problems(tmp_path)
    assert problem.startswith("1 of 2 function names are one word")


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = [
    word.strip()
    for row in re.findall(r"^- \*\*([a-z][a-z, -]+)\*\*:", GLOSSARY, re.MULTILINE)
    for word in row.split(",")
]
#: What may be between the words of a term: an ending of the first one, and a space, hyphen or underscore.
_BETWEEN = r"(?:s|ed|ing)?[ _\n-]"
PRODUCT = [path for folder in ("api_client", "worker") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("term", TERMS)
def test_each_term_of_the_glossary_is_used_in_the_code_and_on_another_page(term: str) -> None:
    said = re.compile(rf"\b{term.replace(' ', _BETWEEN)}(?:s|es|d|ed|ing)?\b", re.IGNORECASE)
    split = (re.sub(r"([a-z])([A-Z])|_", r"\1 \2", path.read_text(encoding="utf-8")) for path in PRODUCT)
    assert any(said.search(text) for text in split), "no code speaks of it"
    pages = (path for path in (ROOT / "docs").glob("*.md") if path.name != "glossary.md")
    assert any(said.search(path.read_text(encoding="utf-8")) for path in pages), "no other page speaks of it"


def test_the_glossary_was_read() -> None:
    assert {"turn", "lease", "fencing token"} <= set(TERMS)
