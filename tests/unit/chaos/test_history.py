"""A history is what was written, in the order of time, however its writers ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.history import HISTORY, WITNESS, Recorder, read


def test_lines_are_read_back_in_the_order_of_time_with_the_agents_own(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write("submit", "invoke", key="k1")
        recorder.write("submit", "ok", key="k1", turn="t0-1")
    first = read(tmp_path)[0]
    executed = {"turn": "t0-1", "attempt": 1, "delivery": 1, "event": "start", "at": 1.0}
    (tmp_path / WITNESS).write_text(json.dumps({**executed, "monotonic": first["t"] / 1e9 - 1}) + "\n")
    lines = read(tmp_path)
    assert [(line["f"], line["type"]) for line in lines] == [
        ("execution", "start"),
        ("submit", "invoke"),
        ("submit", "ok"),
    ]
    assert first.keys() >= {"t", "wall", "pid"}


def test_a_last_line_cut_off_by_its_writers_death_is_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write("run")
    with (tmp_path / HISTORY).open("a") as file:
        file.write('{"t": 1, "f": "sub')
    assert [line["f"] for line in read(tmp_path)] == ["run"]


def test_a_broken_line_in_the_middle_is_no_history(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write("run")
        (tmp_path / HISTORY).open("a").write("nonsense\n")
        recorder.write("phase")
    with pytest.raises(ValueError, match="line 2"):
        read(tmp_path)
