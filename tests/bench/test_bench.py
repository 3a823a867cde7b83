"""The bench runs and says something about every row. What it says is nobody's test."""

from __future__ import annotations

import pytest

from tests.bench import report
from tests.bench.__main__ import Plan, run
from tests.bench.measure import Figures, Load


@pytest.mark.timeout(60)
async def test_the_bench_measures_both_sides_and_sets_them_side_by_side() -> None:
    found = await run(Plan(rounds=1, load=Load(alone=3, together=3, in_flight=3), watched=1), lambda _: None)

    assert found["rounds"] == 1
    assert found["commands"]["plain"]["lua"] == {}
    assert found["commands"]["ours"]["sent"]["EVALSHA"] >= 5
    assert found["stream"]["messages"]["plain"][0] == 2000
    shown = report.text(found)
    for told in (*report.PAIRS, *report.HEADS.values(), *report.LABELS.values(), "durability everysec", "celery 5.7"):
        assert told in shown


def test_a_round_too_short_for_the_clock_is_left_out_of_the_ratios() -> None:
    fields = dict.fromkeys(Figures.__dataclass_fields__, 1.0)
    none = Figures(**{**fields, "worker_cpu_ms": 0.0})
    some = Figures(**{**fields, "worker_cpu_ms": 2.0})
    assert report._ratios([none, some], [some, some], "worker_cpu_ms") == [1.0]
    assert report._show(report._spread(report._ratios([none], [some], "worker_cpu_ms"))) == "too short to tell"
