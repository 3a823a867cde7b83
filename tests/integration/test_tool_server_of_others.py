"""The MCP server of others that docs/tools.md installs, as the page has it."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from api_client.contract.settings import load_settings
from api_client.contract.turn import Outcome
from tests.installation import Installation, environ_of
from tests.tools.running import call, equip, rows, told
from worker.plugins.tools import server_checks

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


@pytest.mark.skipif(not os.environ.get("TOOL_SERVER"), reason="it is downloaded: `make e2e-tool-server`")
async def test_a_server_of_others_works_as_the_page_installs_it(installation: Installation) -> None:
    section = PAGE.read_text().partition("## A server of others\n")[2]
    commands, settings = re.findall(r"```(?:console|toml)\n(.*?)```", section, re.DOTALL)[:2]
    done = subprocess.run(["bash", "-ec", commands], cwd=installation.settings.root, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"it could not be installed: {done.stderr[-300:]}")
    equip(installation, settings)
    settings_of_file = load_settings(environ_of(installation.settings))
    [found] = await asyncio.to_thread(lambda: [*server_checks.tools(settings_of_file)])
    assert (found.state, found.message) == ("ok", "2 tools, 2 of them only read: get_current_time, convert_time")
    installation.worker()
    turn = await installation.result(await call(installation, ("time__get_current_time", {"timezone": "Asia/Tokyo"})))
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert "+09:00" in turn.response
    assert [(row["tool"], row["state"]) for row in rows(installation, turn.turn_id)] == [("get_current_time", "done")]
