"""What the bench of the real CLI says follows from what it measured; tests/claude/test_bench.py lets it run."""

import subprocess
import sys

import pytest

from tests.lab.bench.claude import BARE, FIGURES, KEPT, OURS, judged, p99, table


def figures(milliseconds: float, rate: float) -> dict[str, list[float]]:
    return {each.values or each.name: [rate if each.rate else milliseconds] * 3 for each in FIGURES}


def test_a_goal_is_met_by_a_ratio_or_by_the_figure_itself() -> None:
    found = {BARE: figures(600, 1.0), KEPT: figures(30, 9.0), OURS: figures(30, 8.6)}
    found["ours, cold"] = figures(590, 1.1)
    reached = judged(found)
    assert all(each["met"] for each in reached[OURS].values())
    assert reached[OURS]["later"] == {"value": 0.05, "goal": 0.12, "met": True}
    assert reached[OURS]["our_cpu"] == {"value": 30, "goal": 35.0, "met": True}
    assert [name for name, each in reached["ours, cold"].items() if each["met"]] == ["first_p99"]
    assert "30 [30-30], n=3; 0.05 of claude -p, goal at most 0.12: **met**" in table(found)
    assert "30 [30-30], n=3; goal at most 35: **met**" in table(found)


def test_where_no_sandbox_can_be_made_it_says_so_and_measures_nothing() -> None:
    without = {"PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.bench.claude"], env=without, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be measured here: bubblewrap is not installed" in done.stderr


@pytest.mark.parametrize(("many", "expected"), [(1, 1), (30, 30), (100, 99), (200, 198)])
def test_the_99th_percentile_of_few_is_the_highest(many: int, expected: int) -> None:
    assert p99(range(1, many + 1)) == expected
