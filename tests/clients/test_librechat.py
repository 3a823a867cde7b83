"""What LibreChat sends through: its own package of agents, ``@librechat/agents``, set up as its custom endpoints are.

LibreChat itself needs MongoDB and is not run here; every request of a custom endpoint goes through this package.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from api_client.contract.settings import Settings
from tests.clients.conftest import CLIENTS, is_accepted, needs, ran, selected

LIBRECHAT = CLIENTS / "librechat"


@needs(LIBRECHAT / "node_modules" / "@librechat" / "agents")
def test_librechat_streams_goes_on_names_the_chat_and_reads_errors(
    url: str, relay_settings: Settings, tmp_path: Path
) -> None:
    (LIBRECHAT / "client.mjs").write_text((Path(__file__).parent / "librechat.mjs").read_text())
    done = ran("node", LIBRECHAT / "client.mjs", url, home=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert is_accepted(seen.pop("draft"))
    assert seen == {
        "title": "two attempts",
        "first": {"text": "The answer.", "used": [16], "pieces": 1, "error": ""},
        "second": {"text": "The answer.", "used": [16], "pieces": 1, "error": ""},
        "failed": {"text": "", "used": [], "pieces": 0, "error": "incomplete"},
    }
    turns = asyncio.run(selected(relay_settings))
    assert len(turns) == 4, "a title is no turn"
