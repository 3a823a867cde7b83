"""What make chaos finds running after all was stopped (tests/chaos/aftermath.py)."""

import subprocess
import sys
from pathlib import Path

from tests.chaos.aftermath import look_at_processes
from tests.chaos.history import Recorder, read
from tests.chaos.stage import TEMPORARY
from tests.chaos.targets import Target, target


def left(folder: Path, seen: set[Target]) -> list[int]:
    history = folder / f"history-{len(list(folder.iterdir()))}"
    history.mkdir()
    (folder / TEMPORARY).mkdir(exist_ok=True)
    with Recorder(history) as recorder:
        look_at_processes(folder, seen, recorder)
    return [process["pid"] for line in read(history) if line["f"] == "processes" for process in line["left"]]


def test_a_guard_that_was_seen_and_still_runs_is_left_over(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={}) as running:
        guard = target(running.pid, "guard")
        assert guard
        assert left(tmp_path, {guard}) == [running.pid]
        assert left(tmp_path, set()) == []
        running.kill()
    assert left(tmp_path, {guard}) == []
