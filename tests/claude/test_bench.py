"""The bench of ``make bench-claude`` with the real CLI; what it says is nobody's test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from tests.claude.stub import Stub
from tests.lab.bench.claude import BARE, GOOD, KEPT, MESSAGES, OURS, WITHOUT, all_ways, judged, measure
from worker.runners.sandbox import bubblewrap


@pytest.mark.timeout(300)
def test_the_same_chats_are_measured_four_ways(program: Path, stub: Stub, tmp_path: Path) -> None:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)
    said: list[str] = []
    stub.replies = [GOOD]
    others = subprocess.Popen(["sleep", "300"], env={**os.environ, "HELIX_NAMESPACE": Settings().namespace})
    with all_ways(program.resolve(), stub, tmp_path, []) as ways:
        found = measure(ways, stub, rounds=1, at_once=2, say=said.append)
    assert others.poll() is None, "an installation of somebody else's outlives it"
    others.kill()
    others.wait()
    assert list(found) == [BARE, KEPT, OURS, WITHOUT]
    for figures in found.values():
        assert len(figures["later"]) == MESSAGES - 1
        assert min(value for name, values in figures.items() if name != "our_cpu" for value in values) > 0
    for way in (OURS, WITHOUT):
        assert found[way]["our_cpu"][0] > 0
        assert found[way]["agent_cpu"][0] > found[KEPT]["agent_cpu"][0] / 2, "the agents' time is counted"
    assert judged(found)[OURS].keys() >= {"later", "cpu", "retry"}
    assert len(said) == 8
