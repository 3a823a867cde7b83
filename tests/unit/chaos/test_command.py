"""``turns chaos judge``: what a stored history is worth, as an exit code, a table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.chaos.histories import History, meet_everything
from worker.chaos.history import HISTORY
from worker.cli import main


def judged(history: History, folder: Path, *arguments: str) -> int:
    """The exit code of judging a history that is stored in ``folder``."""
    (folder / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in history.made()))
    with pytest.raises(SystemExit) as ended:
        main(["chaos", "judge", str(folder), *arguments])
    return int(str(ended.value.code))


def test_a_good_history_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    meet_everything(history)
    assert judged(history, tmp_path) == 0
    assert "no violation observed" in capsys.readouterr().out


def test_a_violation_is_exit_code_1_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    meet_everything(history)
    del history.turns["t0-3"]
    assert judged(history, tmp_path) == 1
    assert "lost: t0-3" in capsys.readouterr().out


def test_too_little_is_exit_code_1_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(History(), tmp_path) == 1
    output = capsys.readouterr().out
    assert "no violation observed" in output
    assert "the run proves too little: answer mended by the fallback: never met" in output


def test_with_json_a_program_reads_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    meet_everything(history)
    judged(history, tmp_path, "--json")
    result = json.loads(capsys.readouterr().out)
    assert (result["submitted"], result["acknowledged"], result["finished"], result["lost"]) == (6, 6, 6, 0)
    assert (result["agent_runs"], result["kills"], result["seed"], result["good"]) == (5, {"kill run": 1}, 1, True)
    assert set(result["verdicts"].values()) == {"true"}


def test_a_folder_without_a_history_is_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chaos", "judge", str(tmp_path)])
    assert ended.value.code == 2
