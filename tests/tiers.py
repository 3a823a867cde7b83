"""The tiers of the tests: one closing line for each, with counts and seconds.

A tier is a folder of tests/. ``make test`` runs what has no marker ``long`` and must end within three minutes on two
calm cores; ``make test-all`` goes on with the rest. The tables below say what is long.
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
    "clients": "clients",
    "claude": "claude",
}
#: Folders of which everything is short, but for LONG. Of other folders everything is long, but for SHORT.
SHORT_FOLDERS = {"unit", "contract", "integration"}
#: Files that start whole installations again and again, or try megabytes. Single tests say ``@pytest.mark.long``.
LONG = {
    "test_faults.py",
    "test_again.py",
    "test_agents_in_loop.py",
    "test_alert_rules.py",
    "test_alerts_raised.py",
    "test_backup.py",
    "test_broker.py",
    "test_broker_users.py",
    "test_budgets.py",
    "test_bundle.py",
    "test_calls_for_help.py",
    "test_cli.py",
    "test_compose_services.py",
    "test_datasets.py",
    "test_demo.py",
    "test_examples.py",
    "test_flows.py",
    "test_going_on.py",
    "test_hostile_texts.py",
    "test_judges.py",
    "test_log_lines.py",
    "test_main_path.py",
    "test_metrics.py",
    "test_model_checks.py",
    "test_notices.py",
    "test_offered_validators.py",
    "test_one_marker.py",
    "test_openwebui_check.py",
    "test_operators_questions.py",
    "test_pauses.py",
    "test_phases.py",
    "test_policy_in_the_queue.py",
    "test_policy_replay.py",
    "test_readiness.py",
    "test_readme.py",
    "test_rules_in_box.py",
    "test_shadow.py",
    "test_shards.py",
    "test_starting.py",
    "test_stuck.py",
    "test_supervisor.py",
    "test_task_events.py",
    "test_top.py",
    "test_traces.py",
    "test_troubles_shown.py",
    "test_up.py",
    "test_web_fuzz.py",
    "test_web_killed.py",
    "test_web_limits.py",
    "test_web_slow_readers.py",
    "test_web_store.py",
    "test_workers.py",
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
_COUNTED = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def tier_of(nodeid: str) -> str:
    """The tier of a test by its id, such as ``tests/unit/web/test_page.py::test_x``."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    folder = parts[1] if len(parts) > 2 and parts[0] == "tests" else ""
    return TIERS.get(folder, folder or "other")


def is_long(nodeid: str) -> bool:
    """Whether a test is left to ``make test-all``, by its id."""
    file, _, name = nodeid.partition("::")
    parts = PurePosixPath(file).parts
    if len(parts) > 1 and parts[1] in SHORT_FOLDERS:
        return parts[-1] in LONG
    return parts[-1] not in SHORT and parts[-1] + name[name.find("[") :] not in SHORT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is long; pytest finds this hook in tests/conftest.py."""
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)


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
    if lines := closing_lines(terminalreporter.stats):
        terminalreporter.section("tiers")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
