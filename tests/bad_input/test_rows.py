"""Every row of rows.md has a test that exists, or says why not."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("rows.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| (\d+) \| (.+?) \| (.*?) ?\| (.*?) ?\|$", TABLE, re.MULTILINE)
#: Number -> what comes in, the tests, the remark.
ROWS = {int(number): (what, re.findall(r"`(.+?)`", tests), remark) for number, what, tests, remark in LINES}


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file, as it is written."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_all_72_rows_are_there() -> None:
    assert list(ROWS) == list(range(1, 73))


@pytest.mark.parametrize("number", ROWS)
def test_a_row_has_a_test_that_exists_or_says_why_not(number: int) -> None:
    what, tests, remark = ROWS[number]
    assert what
    assert bool(tests) != remark.startswith("no test: "), "a test, or the reason why there is none"
    for name in tests:
        file, _, test = name.partition("::")
        assert test in names_in(file), f"row {number}: there is no {name}"


def test_a_test_with_the_number_of_a_row_is_named_by_it() -> None:
    for file in TESTS.glob("bad_input/test_*.py"):
        for test in names_in(f"bad_input/{file.name}"):
            number = test.removeprefix("test_").partition("_")[0]
            if number.isdecimal():
                assert f"bad_input/{file.name}::{test}" in ROWS[int(number)][1]
