"""What LibreChat sends through: its own package of agents, ``@librechat/agents``, set up as its custom endpoints are.

LibreChat itself needs MongoDB and is not run here; every request of a custom endpoint goes through this package.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.conftest import CLIENTS, needs, ran

LIBRECHAT = CLIENTS / "librechat"


@needs(LIBRECHAT / "node_modules" / "@librechat" / "agents")
def test_librechat_streams_goes_on_and_reads_errors(url: str, tmp_path: Path) -> None:
    (LIBRECHAT / "client.mjs").write_text((Path(__file__).parent / "librechat.mjs").read_text())
    done = ran("node", LIBRECHAT / "client.mjs", url, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "first": {"text": "The answer.", "used": [16], "pieces": 1, "error": ""},
        "second": {"text": "The answer.", "used": [16], "pieces": 1, "error": ""},
        "failed": {"text": "", "used": [], "pieces": 0, "error": "incomplete"},
    }
