"""The bench runs and says something about every row. What it says is nobody's test."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.lab.bench import plots
from tests.lab.bench.load import work
from tests.lab.bench.load.loop import pace
from tests.lab.bench.peers import client
from tests.lab.bench.step_times import table, turns_of
from tests.lab.bench.turns import peers_home, rows
from tests.lab.bench.turns.capacity import capacity
from tests.lab.bench.turns.measure import is_there, measure
from tests.lab.bench.turns.plan import Plan
from tests.lab.bench.turns.result import context, of_rounds, result, spread
from tests.lab.bench.turns.rows import ROWS
from tests.lab.bench.turns.tables import show, text
from tests.support import processes_with, wait_for


def short(*rows: str) -> Plan:
    return Plan(rounds=1, rows=rows, alone=0.1, together=0.1, in_flight=3, stream=0.1, watched=2, idle=0.1, wait=0.0)


@pytest.mark.timeout(240)
def test_the_bench_measures_our_worker_and_shows_every_figure() -> None:
    plan, said = short("ours"), []
    shown = result(context(plan) | {"seconds": 1.0}, measure(plan, said.append))

    files, row = said
    assert "a new file takes" in files
    assert "turns/s" in row
    assert shown["commands"]["ours"][work.REJECTED]["lua"]
    figures = shown["rows"]["ours"]
    assert figures["rejected.turns_per_s"][0] > 0
    assert figures["stream.pieces_per_s"][0] > 0
    assert figures["idle_pss_mb"][0] > 10
    for told in ("helix-turns", "rejected once", "worker CPU", "EVALSHA", "durability everysec", "celery 5.7"):
        assert told in text(shown)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("durable", [False, True])
def test_each_other_queue_does_the_same_turns(durable: bool) -> None:
    others = tuple(name for name in ROWS if not ROWS[name].ours and ROWS[name].durable is durable)
    if not peers_home.installed(ROWS[others[0]].requirements):
        pytest.skip("the other queues are not installed; `make bench` installs them")
    shown = result(context(short(*others)) | {"seconds": 1.0}, measure(short(*others), lambda _: None))
    for row in others:
        assert shown["rows"][row]["rejected.turns_per_s"][0] > 0
        assert shown["rows"][row]["rejected.worker_cpu_ms"][0] >= 0


def test_an_engine_that_cannot_be_installed_is_left_out_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Path:
        raise peers_home.NoPeers("no network")

    monkeypatch.setattr(rows, "python_of_peers", refuse)
    said: list[str] = []
    assert not is_there(ROWS["dbos"], Plan(), said.append)
    assert said == ["left out: DBOS: no network"]
    for asked in (Plan(rows=("ours", "dbos")), Plan()):
        with pytest.raises(peers_home.NoPeers):
            is_there(ROWS["dbos" if asked.rows != Plan().rows else "taskiq"], asked, said.append)


@pytest.mark.timeout(240)
def test_a_bench_that_is_killed_leaves_neither_processes_nor_files() -> None:
    home = Path(tempfile.mkdtemp(prefix="b-"))
    command = [sys.executable, "-m", "tests.lab.bench", "--rows", "ours", "--rounds", "1"]
    running = subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(home)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: any("celery_worker" in each for each in processes_with(f"{home}/").values()), 120)
        running.kill()
        running.wait(60)
        wait_for(lambda: not processes_with(f"{home}/") and not list(home.iterdir()), 120)
    finally:
        running.kill()
        running.wait(60)
        shutil.rmtree(home, ignore_errors=True)


def test_capacity_follows_from_the_medians() -> None:
    def figures(worker: float, store: float) -> dict[str, list[float]]:
        names = ("turns_per_s", "p50_ms", "client_cpu_ms", "memory_bytes", "aof_bytes")
        found = {f"rejected.{name}": [2.0, 1.0, 3.0] for name in names}
        return found | {"rejected.worker_cpu_ms": [worker] * 3, "rejected.store_cpu_ms": [store] * 3}

    model = capacity(figures(2.0, 0.5), "rejected")
    assert model
    assert (model.per_core_hour, model.store_limit, model.cores_at_limit) == (1_800_000, 2000, 4)
    assert capacity(figures(0.0, 0.5), "rejected") is None


def test_a_round_too_short_for_the_clock_is_left_out_of_the_ratios() -> None:
    assert of_rounds({"x": [3.0, 4.0]}, {"x": [0.0, 2.0]}, "x") == [2.0]
    assert show(spread(of_rounds({"x": [3.0]}, {"x": [0.0]}, "x"))) == ""


def test_turns_a_second_are_counted_from_when_the_first_ones_in_flight_have_ended() -> None:
    slow = [0.5, 0.5, 1.0, 1.0, 1.5, 1.5, 2.0, 2.0]  # two in flight, half a second each
    fast = [(number // 2 + 1) * 0.1 for number in range(40)]
    assert pace(slow, 2, 2.0) == pytest.approx(4.0)
    assert pace(fast, 2, 2.0) == pytest.approx(20.0)
    assert pace([0.4, 0.5, 0.9], 50, 1.0) == pytest.approx(3.0), "too few to tell: all of the time"


def test_quick_measures_the_turn_that_is_rejected_once_on_fewer_rows() -> None:
    quick = Plan(rounds=2).quick()
    assert (quick.rounds, quick.kinds, quick.rows) == (
        2,
        (work.REJECTED,),
        ("ours", "celery-chain", "dramatiq", "taskiq"),
    )
    assert Plan(rows=("saq",)).quick().rows == ("saq",)


def test_peers_judge_answers_as_the_turns_say_they_end() -> None:
    for answers in work.ANSWERS.values():
        assert [work.accepted(answer) for answer in answers] == [False] * (len(answers) - 1) + [True]
    peer = client.Peer.__new__(client.Peer)
    assert peer.right(work.REJECTED, {"attempts": 2})
    assert not peer.right(work.REJECTED, {"attempts": 1})


def test_another_list_of_versions_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("celery==5.7.0\n")
    assert peers_home.home(tmp_path, tmp_path / "requirements.txt") != peers_home.home(tmp_path)


def test_a_step_that_a_worker_takes_after_the_next_submit_belongs_to_the_turn_before() -> None:
    begins, taken, ended = "client: submit begins", "loop: looks at what is new", "loop: task ended"
    stamps = [(0, begins), (1_000_000, taken), (4_000_000, begins), (4_500_000, ended), (5_000_000, taken)]
    first, second = turns_of([*stamps, (8_500_000, ended)])
    assert [step for _, step in first] == [step for _, step in second] == [begins, taken, ended]
    assert table([first, second]) == [(0.0, begins), (1.0, taken), (4.5, ended)]


@pytest.mark.parametrize("process", ["stamp_engine", "stamp_client"])
def test_every_step_that_is_stamped_exists(process: str) -> None:
    command = [sys.executable, "-c", f"from tests.lab.bench import stamps; stamps.{process}()"]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_the_plots_of_the_docs_are_those_of_the_measured_figures() -> None:
    found = plots.drawn(plots.measured())
    assert {name: (plots.IMAGES / name).read_text() for name in found} == found


def test_a_plot_has_its_lines_within_its_axes() -> None:
    svg = plots.plot("t", "x", "y", [plots.Line("a", [(1, 10), (100, 1000)]), plots.Line("b", [(2, 20), (2, 20)])])
    [first, _] = [line for line in svg.splitlines() if line.startswith("<polyline")]
    assert 'points="84.0,288.0 570.0,48.0"' in first
    assert plots.cost({"worker_ms": {"a": 3599.0}, "store_ms": 1.0}, 2.0)[-1] == "| a | 1.0000 | 2.00000 |"
