"""The tiers of the tests: which tests ``make test`` has time for, and a closing line for each folder.

``make durations`` runs everything and writes into ``durations.json`` how long each file took. ``make test`` takes the
quick files until its time is used up; ``make test-all`` continues with the rest, which get the marker ``long``. A file
without a record counts as quick, one whose record is null (known as slow, not measured yet) as long.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

#: The folder of a test -> the tier's name, in the order they are told.
TIERS = {
    "unit": "unit",
    "contract": "contract",
    "integration": "integration",
    "fault": "crashes",
    "lab": "lab",
    "browser": "browser",
    "clients": "clients",
    "claude": "claude",
    "agents": "agents",
    "oidc": "oidc",
}
#: The short crash round: the guard, and a turn that is hit at these boundaries (tests/fault/test_crash_matrix.py).
SHORT = {
    "test_guard.py",
    "test_crash_matrix.py[turn.stored-kill]",
    "test_crash_matrix.py[task.received-kill]",
    "test_crash_matrix.py[folder.made-kill]",
    "test_crash_matrix.py[agent.started-stop]",
    "test_crash_matrix.py[agent.ended-kill]",
    "test_crash_matrix.py[answer.sealed-kill]",
    "test_crash_matrix.py[run.claimed-broker]",
}
#: How many seconds of tests ``make test`` takes, of both its processes together; with collecting, three minutes.
MOST_SECONDS = 200.0
RECORD = Path(__file__).with_name("durations.json")
_COUNTED = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def tier_of(nodeid: str) -> str:
    """Return the tier of a test by its id, such as ``tests/unit/web/test_page.py::test_x``."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    folder = parts[1] if len(parts) > 2 and parts[0] == "tests" else ""
    return TIERS.get(folder, folder or "other")


def long_files(durations: Mapping[str, float | None], most: float = MOST_SECONDS) -> set[str]:
    """Return the slowest files, which ``make test`` leaves out so that the others take at most ``most`` seconds."""
    measured = sorted((seconds, file) for file, seconds in durations.items() if seconds is not None)
    found = durations.keys() - {file for _, file in measured}
    while measured and sum(seconds for seconds, _ in measured) > most:
        found.add(measured.pop()[1])
    return found


@cache
def _durations() -> dict[str, float | None]:
    found: dict[str, float | None] = json.loads(RECORD.read_text())
    return found


@cache
def _long_files() -> set[str]:
    return long_files(_durations())


def is_long(nodeid: str) -> bool:
    """Return True if the test with this id is left to ``make test-all``."""
    file, _, name = nodeid.partition("::")
    short = PurePosixPath(file).name
    return file in _long_files() and not {short, short + name[name.find("[") :]} & SHORT


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--record-durations``; pytest finds this hook in tests/conftest.py."""
    parser.addoption("--record-durations", action="store_true", help="write into tests/durations.json how long it took")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long tests, and run long files first; pytest finds this hook in tests/conftest.py.

    Otherwise a long file at the end would keep one process busy while the others have nothing to do.
    """
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: seconds_of(item.nodeid, _durations()), reverse=True)


def seconds_of(nodeid: str, durations: Mapping[str, float | None]) -> float:
    """Return how long a test's file took; a file known as slow but not measured counts as infinitely long."""
    found = durations.get(nodeid.partition("::")[0], 0.0)
    return math.inf if found is None else found


def recorded(before: Mapping[str, float | None], stats: Mapping[str, list[Any]]) -> dict[str, float | None]:
    """Return the record after a run, with new durations for the files that ran."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in (each for reports in stats.values() for each in reports if isinstance(each, pytest.TestReport)):
        seconds[report.nodeid.partition("::")[0]] += report.duration
    return dict(sorted({**before, **{file: round(took, 1) for file, took in seconds.items()}}.items()))


def closing_lines(stats: dict[str, list[Any]]) -> list[str]:
    """Return one line for each tier, with its counts and the seconds of its tests over all processes.

    ``stats`` maps outcomes to reports, as pytest's terminal reporter keeps them.
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
    """Write the closing lines, and the record if requested; pytest finds this hook in tests/conftest.py."""
    if terminalreporter.config.getoption("--record-durations"):
        written = recorded(json.loads(RECORD.read_text()), terminalreporter.stats)
        RECORD.write_text(json.dumps(written, indent=0) + "\n")
    if lines := closing_lines(terminalreporter.stats):
        terminalreporter.section("tiers")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
