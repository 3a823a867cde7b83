"""docs/claude-cli.md shows each measured ending with the verdict the tests assert."""

from __future__ import annotations

import re
from pathlib import Path

from tests.claude.endings import ENDINGS
from tests.claude.running import VERSION
from worker.cli.checks.claude import MEASURED

TEXT = (Path(__file__).parents[2] / "docs" / "claude-cli.md").read_text(encoding="utf-8")


def named(line: str) -> list[str]:
    """The endings of a line; one with a list of numbers names one for each."""
    before, numbers, after = re.match(r"- (.*?)(\d+(?:, \d+)+|$)(.*)", line).groups()  # type: ignore[union-attr]
    return [f"{before}{number}{after}" for number in numbers.split(", ")]


def test_every_ending_is_documented_with_its_verdict() -> None:
    lists = re.findall(r"^Verdict `(\w+)`.*\n\n((?:- .+\n)+)", TEXT, re.MULTILINE)
    documented = {name: verdict for verdict, lines in lists for line in lines.splitlines() for name in named(line)}
    assert {ending.name: ending.truth for ending in ENDINGS}.items() <= documented.items()


def test_documents_doctor_and_tests_mean_the_same_version() -> None:
    assert VERSION == MEASURED
    assert f"CLI {VERSION}" in TEXT
