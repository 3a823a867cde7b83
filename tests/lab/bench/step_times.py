"""Where the time of one turn goes, step by step: ``python -m tests.lab.bench.step_times [ROW] [TURNS]``.

Turns that are rejected once, on a store of its own. Client and worker stamp each step by one clock
(``stamps.py``); the stamps themselves take 1 to 2 µs each.
"""

import os
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from tests.lab.bench.load import work
from tests.lab.bench.stamps import FOLDER
from tests.lab.bench.turns.rows import ROWS
from tests.lab.bench.turns.running import Running
from tests.ports import free_port
from worker.processes.embedded_broker import EmbeddedBroker

_NAMED = Path(__file__).with_name("named")
_FIRST, _LAST = "client: submit begins", "client: hears turn.finished"
_TAKEN, _WORK = "loop: looks at what is new", ("loop", "files")

Steps = list[tuple[int, str]]


def turns_of(stamps: Steps) -> list[Steps]:
    """The stamps of each turn in order of time, where turns come one after the other.

    A worker ends a turn's task while the next one is submitted already: its loop's steps belong to the turn that it
    looked at last.
    """
    turns: list[Steps] = []
    at_work: Steps = []
    for at, step in sorted(stamps):
        if step == _FIRST:
            turns.append([])
        if turns and step == _TAKEN:
            at_work = turns[-1]
        of = at_work if step.startswith(_WORK) else turns[-1] if turns else []
        of.append((at, step))
    return turns


def table(turns: list[Steps]) -> list[tuple[float, str]]:
    """Each step that most turns pass: ms after the submit began (median), and its name."""
    at: dict[tuple[str, int], list[float]] = defaultdict(list)
    for turn in turns:
        nth = Counter[str]()
        for stamp, step in turn:
            nth[step] += 1
            at[step, nth[step]].append((stamp - turn[0][0]) / 1e6)
    usual = {key: median(found) for key, found in at.items() if len(found) > len(turns) / 2}
    return sorted((ms, step) for (step, _), ms in usual.items())


def main() -> None:
    name, turns = (*sys.argv[1:], *("ours", "500")[len(sys.argv) - 1 :])[:2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_NAMED), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="turns-wait-", ignore_cleanup_errors=True) as folder:
        stamps = Path(folder) / "stamps"
        stamps.mkdir()
        os.environ[FOLDER] = str(stamps)
        store = EmbeddedBroker(Path(folder) / "store", durability="everysec", port=free_port())
        with store, Running(ROWS[name], store, Path(folder), waiting=False) as running:
            running.turns(work.REJECTED, in_flight=20, seconds=20.0, most=200)
            load = running.turns(work.REJECTED, in_flight=1, seconds=60.0, most=int(turns))
        lines = [line.split(" ", 1) for file in stamps.iterdir() for line in file.read_text("utf-8").splitlines()]
    found = turns_of([(int(at), step.strip()) for at, step in lines])
    alone = [turn for turn in found if sum(step in {_LAST, _TAKEN} for _, step in turn) == 2]
    print(f"{ROWS[name].label}: {len(alone)} turns, p50 {load['p50_ms']:.2f} ms, others {load['others']:.0%}\n")
    print("| ms after the submit began | ms since the step before | step |\n|---|---|---|")
    before = 0.0
    for ms, step in table(alone):
        print(f"| {ms:.2f} | {ms - before:.2f} | {step} |")
        before = ms


if __name__ == "__main__":
    main()
