"""``turns chaos``, as everybody runs it: a minute of load and kills with a fixed seed loses and doubles nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import turns
from worker.chaos.checker import MUST_BE_ZERO
from worker.chaos.checker.rare import SURE

TURNS, SECONDS, SEED = 110, 50, 20


def judged(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, result and progress of ``turns chaos``."""
    done = subprocess.run(turns("chaos", *arguments, "--json"), capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.timeout(420)
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
