"""The closing lines of a test run, and what is in the wheel that is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiers import closing_lines
from tests.wheel import readme_extras, supported

ROOT = Path(__file__).parents[2]


def report(nodeid: str, when: str = "call", duration: float = 1.0) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, when, duration=duration)  # type: ignore[arg-type]


def test_each_tier_closes_with_its_counts_and_its_seconds_set_up_included() -> None:
    stats: dict[str, list[Any]] = {
        "passed": [report("tests/unit/test_a.py::test_b"), report("tests/fault/test_c.py::test_d[::x]", duration=30.0)],
        "skipped": [report("tests/unit/web/test_e.py::test_f", "setup", 0.0)],
        "": [report("tests/fault/test_c.py::test_d[::x]", "setup", 2.0)],
        "deselected": ["not a report"],
    }
    assert closing_lines(stats) == [
        "unit         1 passed, 1 skipped (1 s of tests)",
        "crashes      1 passed (32 s of tests)",
    ]


def test_the_wheel_is_installed_as_the_readme_says_on_every_python_it_supports() -> None:
    assert readme_extras((ROOT / "README.md").read_text()) == "demo,flower,otel"
    assert supported() == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize("text", ["nothing", 'pip install ".[a]" or pip install ".[b]"'])
def test_a_readme_with_no_or_two_installations_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must name one"):
        readme_extras(text)
