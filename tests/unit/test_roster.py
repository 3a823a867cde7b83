"""A worker's line: what it does, and whether it is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.turn import TurnState
from api_client.contract.values.worker_reports import WorkerReport
from api_client.workers.fleet import Doing, roster
from api_client.workers.reason import Row

NOW = 1000.0


def report(**more: Any) -> WorkerReport:
    report = WorkerReport(name="run-1@h", host="h", pid=7, queues=("helix.run",), slots=4, free=3)
    return replace(report, **{"at": NOW - 1, "started_at": 1.0, **more})


def held(worker: str) -> Row:
    return Row(
        turn_id="t0-1", due=0, state=TurnState.RUNNING, created_at=0, session_id="s", held=True, task="turn.run",
        not_before=0, announced=1, announced_at=0, parked_at=0, since=900_000, held_since=0, worker=worker,
    )  # fmt: skip


def test_a_worker_shows_the_turns_it_holds() -> None:
    [line] = roster([report()], [held("run-1@h"), held("other")], NOW)
    assert (line.state, line.doing) == ("at work", (Doing("t0-1", "turn.run", 900.0),))


@pytest.mark.parametrize(
    ("more", "state"),
    [({}, "idle"), ({"stalled": True}, "stalled"), ({"sick": "disk"}, "sick"), ({"quiet": True}, "quiet")],
)
def test_a_living_worker_says_how_it_is(more: dict[str, Any], state: str) -> None:
    [line] = roster([report(**more)], [], NOW)
    assert (line.state, line.silent_seconds) == (state, 0)


def test_a_silent_worker_is_gone_unless_another_took_its_place_then_nobody_misses_it() -> None:
    silent = report(name="run-0@h", at=NOW - 600)
    [line] = roster([silent], [], NOW)
    assert (line.state, line.silent_seconds) == ("gone", 600)
    lines = roster([silent, report(started_at=500.0)], [], NOW)
    assert [(each.name, each.state) for each in lines] == [("run-1@h", "idle"), ("run-0@h", "replaced")]


def test_who_is_gone_comes_first() -> None:
    lines = roster([report(), report(name="z@i", host="i", at=NOW - 60)], [], NOW)
    assert [each.name for each in lines] == ["z@i", "run-1@h"]
