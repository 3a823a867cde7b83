"""What LibreChat sends through: its own package of agents, ``@librechat/agents``, set up as its custom endpoints are.

LibreChat itself needs MongoDB and is not run here; every request of a custom endpoint goes through this package.
"""

import asyncio
import json
from pathlib import Path

from api_client.contract.settings import Settings
from tests.clients.conftest import CLIENTS, IMAGE, agent_writes, is_accepted, needs, ran, selected, started
from tests.installation import RelayProcess

LIBRECHAT = CLIENTS / "librechat"


INSTALLED = LIBRECHAT / "node_modules" / "@librechat" / "agents"


def placed() -> Path:
    client = LIBRECHAT / "client.mjs"
    client.write_text((Path(__file__).parent / "librechat.mjs").read_text())
    return client


@needs(INSTALLED)
def test_librechat_streams_goes_on_names_the_chat_and_reads_errors(
    url: str, relay_settings: Settings, tmp_path: Path
) -> None:
    client = placed()
    done = ran("node", client, url, home=tmp_path, IMAGE=IMAGE)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert is_accepted(seen.pop("draft"))
    assert seen == {
        "title": "two attempts",
        "first": {"text": "The answer.", "used": [16], "pieces": 1, "error": ""},
        "second": {"text": "The answer.", "used": [16], "pieces": 1, "error": ""},
        "failed": {"text": "", "used": [], "pieces": 0, "error": "incomplete"},
        "refused": "image_not_read",
    }
    turns = asyncio.run(selected(relay_settings))
    assert len(turns) == 4, "a title is no turn"


@needs(INSTALLED)
def test_librechat_shows_that_its_relay_died_and_is_answered_when_asked_again(
    relay: RelayProcess, url: str, gate: Path, tmp_path: Path
) -> None:
    asked = ("node", placed(), url, "a held answer")
    waits = started(*asked, home=tmp_path)
    asyncio.run(agent_writes(relay.settings))
    relay.kill()
    said, wrong = waits.communicate(timeout=240)
    assert waits.returncode == 0, wrong
    assert json.loads(said)["error"], "an answer that broke off is no whole one"
    relay.start()
    gate.touch()
    again = ran(*asked, home=tmp_path)
    assert json.loads(again.stdout)["text"] == "Held no more.", again.stderr
