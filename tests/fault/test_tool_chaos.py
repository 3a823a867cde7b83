"""A few turns with tool calls while agent, guard, gateway, worker and broker are killed, each at least once."""

import os
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from tests.lab.tool_chaos import VICTIMS, run_campaign


@pytest.mark.timeout(900)
async def test_writes_are_executed_once_or_reported_as_unknown_while_everything_is_killed(tmp_path: Path) -> None:
    found = await run_campaign(int(os.environ.get("TURNS", "16")), tmp_path)
    assert found.problems == [], found.table()
    assert found.kills.keys() == VICTIMS.keys(), found.table()
