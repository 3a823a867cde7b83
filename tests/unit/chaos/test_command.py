"""``python -m tests.chaos judge``: what a stored history is worth, as an exit code, a table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.command import main
from tests.chaos.history import HISTORY
from tests.unit.chaos.histories import History, meet_everything


def judged(history: History, folder: Path, *arguments: str) -> int:
    """The exit code of judging a history that is stored in ``folder``."""
    (folder / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in history.made()))
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(folder), *arguments])
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


def test_too_little_is_exit_code_3_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(History(), tmp_path) == 3
    output = capsys.readouterr().out
    assert "no violation observed" in output
    assert "the run proves too little: answer repaired by the fallback: never met" in output


def test_with_json_a_program_reads_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    meet_everything(history)
    judged(history, tmp_path, "--json")
    result = json.loads(capsys.readouterr().out)
    assert (result["submitted"], result["acknowledged"], result["finished"], result["lost"]) == (6, 6, 6, 0)
    assert (result["agent_runs"], result["kills"], result["seed"], result["good"]) == (5, {"kill engine": 1}, 1, True)
    assert set(result["verdicts"].values()) == {"true"}


def test_a_folder_without_a_history_is_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(tmp_path)])
    assert ended.value.code == 2


def test_a_violation_in_a_run_that_proves_too_little_is_exit_code_1(tmp_path: Path) -> None:
    history = History()
    del history.turns["t0-3"]
    assert judged(history, tmp_path) == 1


def test_a_damaged_history_is_exit_code_2_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / HISTORY).write_text("{\nnothing\n")
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / HISTORY}, line 1: ")


def test_a_run_that_breaks_is_exit_code_2_keeps_its_history_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("a fault of the laboratory")

    monkeypatch.setattr("tests.chaos.command.run", breaks)
    with pytest.raises(SystemExit) as ended:
        main(["--history", str(tmp_path / "kept")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"the run could not be carried out; the history so far is in {tmp_path / 'kept'}" in said
    assert "a fault of the laboratory" in said
