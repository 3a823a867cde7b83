"""What the bench of the real CLI says follows from what it measured; tests/claude/test_bench.py lets it run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.bench.claude import BARE, FIGURES, KEPT, OURS, cpu_split, judged, p99, table

_BUSY = "import time\nends = time.process_time() + 0.5\nwhile time.process_time() < ends: pass\n"
#: Its first child ends, its second one stays and has said so; itself it does next to nothing. Each works for 500 ms;
#: the kernel counts in whole 10 ms, and rounds down.
_PARENT = f"""
import subprocess, sys
agent = sys.argv[1]
subprocess.run([agent, "-c", {_BUSY!r}])
child = subprocess.Popen([agent, "-c", {_BUSY + "print(flush=True); import sys; sys.stdin.read()"!r}])
child.wait()
"""


def test_the_processor_time_of_children_counts_whether_they_live_or_have_ended(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text("only its name is used")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _PARENT, sys.executable], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout
        parent.stdout.readline()
        program = Path(f"/proc/{parent.pid}/exe").readlink()
        ended, alive = cpu_split([parent.pid], agent)
        together, nothing = cpu_split([parent.pid], program)
        assert parent.stdin
        parent.stdin.close()
    assert 450 <= ended < 1000, "the child that has ended is an agent's"
    assert 450 <= alive < 1000, "the one that lives runs another program"
    assert together >= ended + alive
    assert nothing == 0
    assert cpu_split([parent.pid], program) == (0, 0)


def figures(milliseconds: float, rate: float) -> dict[str, list[float]]:
    return {each.values or each.name: [rate if each.rate else milliseconds] * 3 for each in FIGURES}


def test_a_goal_is_met_by_its_ratio_to_a_process_a_message() -> None:
    found = {BARE: figures(600, 1.0), KEPT: figures(30, 9.0), OURS: figures(60, 2.5)}
    found["ours, cold"] = figures(630, 1.1)
    reached = judged(found)
    assert all(each["met"] for each in reached[OURS].values())
    assert reached[OURS]["later"] == {"ratio": 0.1, "goal": 0.2, "met": True}
    assert reached[OURS]["later_beyond_kept"] == {"ms": 30, "goal": 40.0, "met": True}
    assert [name for name, each in reached["ours, cold"].items() if each["met"]] == ["first_p99"]
    assert "60 [60-60], n=3; x 0.10, goal at most 0.2: **met**" in table(found)


@pytest.mark.parametrize(("many", "expected"), [(1, 1), (30, 30), (100, 99), (200, 198)])
def test_the_99th_percentile_of_few_is_the_highest(many: int, expected: int) -> None:
    assert p99(range(1, many + 1)) == expected
