"""Every row of bad input has a test that exists, or says why not."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.bad_input.rows import ROWS

TESTS = Path(__file__).parents[1]


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file, as it is written."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_all_72_rows_are_there() -> None:
    assert list(ROWS) == list(range(1, 73))


@pytest.mark.parametrize("number", ROWS)
def test_a_row_has_a_test_that_exists_or_says_why_not(number: int) -> None:
    row = ROWS[number]
    assert row.what
    assert bool(row.tests) != bool(row.untested), "a test, or the reason why there is none"
    for name in (*row.tests, *row.real):
        file, _, test = name.partition("::")
        assert test in names_in(file), f"row {number}: there is no {name}"
        assert file.startswith("claude/") == (name in row.real), "what the real CLI is needed for is told apart"


def test_a_test_with_the_number_of_a_row_is_named_by_it() -> None:
    for file in TESTS.glob("bad_input/test_*.py"):
        for test in names_in(f"bad_input/{file.name}"):
            number = test.removeprefix("test_").partition("_")[0]
            if number.isdecimal():
                assert f"bad_input/{file.name}::{test}" in ROWS[int(number)].tests
