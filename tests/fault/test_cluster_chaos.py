"""A few turns on a cluster whose masters die, whose slot moves and whose broker is emptied, each at least once."""

import os
from pathlib import Path

import pytest

from tests.fault.cluster_chaos import chaos


@pytest.mark.timeout(900)
async def test_no_acknowledged_turn_is_lost_on_a_cluster_while_masters_die_and_its_slot_moves(tmp_path: Path) -> None:
    turns = int(os.environ.get("TURNS", "60"))
    found = await chaos(turns, "replicated", tmp_path, pause=2.0, happenings=5)
    said = found.line("replicated")
    assert found.lost == [], said
    assert len(found.acknowledged) == turns, said
    assert found.outcomes == {"passed": turns}, said
    assert found.kills >= 3, said
    assert min(found.moves, found.emptied) >= 1, said
