"""The tiers of the tests: one closing line for each, with counts and seconds.

A tier is a folder of tests/. What has the marker ``long`` is not in ``make test``, but in ``make test-all``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import PurePosixPath
from typing import Any

import pytest

#: The folder of a test -> the tier's name, in the order they are told.
TIERS = {
    "unit": "unit",
    "contract": "contract",
    "integration": "integration",
    "fault": "crashes",
    "probe": "box",
    "bench": "benches",
    "browser": "browser",
    "claude": "claude",
}
_COUNTED = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def tier_of(nodeid: str) -> str:
    """The tier of a test by its id, such as ``tests/unit/web/test_page.py::test_x``."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    folder = parts[1] if len(parts) > 2 and parts[0] == "tests" else ""
    return TIERS.get(folder, folder or "other")


def closing_lines(stats: dict[str, list[Any]]) -> list[str]:
    """One line a tier. Its seconds are those of its tests, added up over all processes.

    ``stats``: outcome -> reports, as pytest's terminal reporter keeps them; under "" those of setups and teardowns.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    for outcome, reports in stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tier = tier_of(report.nodeid)
                seconds[tier] += report.duration
                counts[tier][outcome] += outcome in _COUNTED
    order = [*TIERS.values(), *sorted(set(counts) - set(TIERS.values()))]
    lines = []
    for tier in filter(counts.__contains__, order):
        counted = ", ".join(f"{counts[tier][outcome]:,} {outcome}" for outcome in _COUNTED if counts[tier][outcome])
        lines.append(f"{tier:12} {counted} ({seconds[tier]:.0f} s of tests)")
    return lines


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the closing lines; pytest finds this hook in tests/conftest.py."""
    terminalreporter.section("tiers")
    for line in closing_lines(terminalreporter.stats):
        terminalreporter.write_line(line)
