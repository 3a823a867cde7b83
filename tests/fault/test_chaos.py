"""``make chaos`` as everybody runs it: a minute of load and kills with a fixed seed loses and doubles nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import MUST_BE_ZERO
from tests.chaos.checker.rare import SURE
from tests.support import processes_with, wait_for

CHAOS = (sys.executable, "-m", "tests.chaos")
ROOT = Path(__file__).parents[2]
TURNS, SECONDS, SEED = 110, 50, 20


def judged(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run ``python -m tests.chaos``; return its exit code, result and progress output."""
    done = subprocess.run([*CHAOS, *arguments, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.timeout(900)
def test_a_minute_of_kills_loses_and_doubles_nothing(tmp_path: Path) -> None:
    history = tmp_path / "history"
    plan = ["--turns", str(TURNS), "--seconds", str(SECONDS), "--seed", str(SEED)]
    code, result, progress = judged(*plan, "--history", str(history))
    assert result["problems"] == [], progress
    assert {name: result[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert set(result["verdicts"].values()) == {"true"}
    assert result["submitted"] == TURNS
    assert result["finished"] >= result["acknowledged"] > 0.9 * TURNS
    assert sum(result["kills"].values()) >= 8
    assert all(result["sometimes"][event] for event in SURE), result["sometimes"]
    assert (code, result["good"]) == (0, True)

    again = judged("judge", str(history))
    assert again[:2] == (code, result), "a stored history is judged the same, without servers"


@pytest.fixture
def short() -> Iterator[Path]:
    """Provide a folder with a path short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="c-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize(
    ("moment", "number"), [("starting broker", signal.SIGINT), ("chats and", signal.SIGTERM)], ids=["start", "load"]
)
def test_a_run_that_is_interrupted_leaves_neither_files_nor_processes(
    short: Path, moment: str, number: signal.Signals
) -> None:
    said = short / "said"
    (short / "tmp").mkdir()
    with said.open("wb") as output:
        running = subprocess.Popen(
            [*CHAOS, "--turns", "300", "--seconds", "60", "--seed", "46"],
            cwd=ROOT,
            stderr=output,
            env={**os.environ, "TMPDIR": str(short / "tmp")},
        )
    wait_for(lambda: moment in said.read_text())
    if moment == "chats and":  # agents run, and something was killed or frozen
        logs = list((short / "tmp").glob("chaos-history-*/*.jsonl"))
        wait_for(lambda: any('"freeze' in log.read_text() for log in logs))
    running.send_signal(number)
    assert running.wait(180) == 128 + number, said.read_text()
    assert "interrupted" in said.read_text()
    assert list((short / "tmp").iterdir()) == []
    wait_for(lambda: not processes_with(str(short)))
