"""Tasks by MCP while relay and worker are killed: none is lost or done twice. For 300: ``MCP_TASKS=300 pytest ...``."""

import os

import pytest

pytest.importorskip("mcp")

from tests.installation import Installation
from tests.mcp.tasks import driven

pytestmark = pytest.mark.long


async def test_each_task_is_one_turn_and_answered(installation: Installation) -> None:
    tasks = int(os.environ.get("MCP_TASKS", "24"))
    report = await driven(installation, tasks, 6)
    print(report)
    assert report.right, (str(report), report.others)
    assert report.kills["relay"] >= 2
    assert report.kills["worker"] >= 1
