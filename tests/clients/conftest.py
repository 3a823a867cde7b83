"""Other OpenAI clients, as people install them, before a real relay and a real worker. ``make e2e-clients``."""

import os
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.index.search import FoundTurn, Search
from api_client.index.selection import select_turns
from tests.installation import Installation, RelayProcess
from tests.integration.test_structured_output import SCRIPT as STRUCTURED
from tests.support import wait_until
from worker.cli.installation.openwebui import draw_icon

CLIENTS = Path(os.environ.get("CLIENTS", ".helix-tools/clients")).absolute()
EVERY = Search()
SCRIPT = """
- when: two attempts
  attempts:
    - - usage: {input_tokens: 5, output_tokens: 3}
      - say: "The answer."
    - - usage: {input_tokens: 5, output_tokens: 3}
      - say: "<!-- STEP: why -->"
- when: change the greeting
  attempts:
    - - say: "I change the greeting.\\n\\ngreeting.py\\n```\\nprint('hello, world')\\n```\\n"
    - - say: "<!-- STEP: generate -->"
- when: slow answer
  attempts:
    - - wait: 6
      - say: "The slow answer.\\n\\n<!-- STEP: why -->"
- when: never ends
  attempts:
    - - say: "Half"
      - cut
- when: held answer
  attempts:
    - - say: "Held "
      - wait_for: GATE
      - say: "no more.\\n\\n<!-- STEP: why -->"
"""
#: What the users of the browser tests are answered: "two drafts" is rejected first, then two ADRs are accepted.
BROWSER_SCRIPT = Path(__file__).parents[1] / "browser" / "installed.yaml"
#: An image as a part of a message; no model here reads images.
IMAGE = f"data:image/png;base64,{b64encode(draw_icon('a')).decode()}"


def is_accepted(text: str) -> bool:
    """The text is the answer to "two drafts" that was accepted, and nothing of the draft before it."""
    return text.strip().startswith('---\nadr_id: "007"') and "# ADR-008: An alert" in text and "DRAFT" not in text


def needs(installed: Path) -> pytest.MarkDecorator:
    """Skip a test unless its client could be installed."""
    if not os.environ.get("CLIENTS"):
        return pytest.mark.skipif(True, reason="run by `make e2e-clients`: it installs the clients")
    return pytest.mark.skipif(not installed.exists(), reason=f"could not be installed: {installed.name}")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What the held answer waits for: it ends when this file is there."""
    return tmp_path / "gate"


@pytest.fixture
def relay(installation: Installation, tmp_path: Path, gate: Path) -> RelayProcess:
    """A relay that serves; a worker is behind it."""
    script = tmp_path / "script.yaml"
    script.write_text(
        STRUCTURED + SCRIPT.replace("GATE", str(gate)) + BROWSER_SCRIPT.read_text().replace("GATE", str(tmp_path))
    )
    installation.change(models={"helix": f"scripted:{script}"}, locale="en")
    installation.worker()
    return installation.relay()


@pytest.fixture
def relay_settings(relay: RelayProcess) -> Settings:
    """Settings of the relay that serves."""
    return relay.settings


@pytest.fixture
def url(relay: RelayProcess) -> str:
    return f"{relay.url}/v1"


async def agent_writes(settings: Settings) -> None:
    """Return when the agent has begun the held answer."""
    async with TurnsClient(settings) as client:

        async def written() -> bool:
            found = [await client.reader.read_events(turn.turn_id) for turn in await select_turns(client.lists, EVERY)]
            return any(isinstance(event.body, AttemptOutput) for events in found for event in events)

        await wait_until(written)


def environ(home: Path, **more: str) -> dict[str, str]:
    """The environment of a client with an empty home, that reaches this machine only."""
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **nowhere, **more}


def ran(*command: str | Path, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A client that has ended; ``more`` is environment."""
    given = environ(home, LLM_USER_PATH=str(home), **more)
    stdin = subprocess.DEVNULL
    return subprocess.run(command, env=given, cwd=home, stdin=stdin, capture_output=True, text=True, timeout=240)


def started(*command: str | Path, home: Path, **more: str) -> subprocess.Popen[str]:
    """A client that runs, as ``ran`` runs it; its words are in ``communicate``."""
    given = environ(home, LLM_USER_PATH=str(home), **more)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=given, cwd=home, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


async def selected(settings: Settings, wanted: Search = EVERY) -> list[FoundTurn]:
    async with TurnsClient(settings) as client:
        return await select_turns(client.lists, wanted)


async def requests(settings: Settings) -> list[TurnRequest]:
    async with TurnsClient(settings) as client:
        return [
            (await client.reader.read_turn(turn.turn_id)).request for turn in await select_turns(client.lists, EVERY)
        ]
