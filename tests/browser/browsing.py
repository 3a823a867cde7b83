"""Looking at our own pages in a real browser: the installation they are looked at in, and the browser's steps."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.escalation import Escalation
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest, TurnState, new_session_id
from tests.installation import turns
from tests.support import wait_until

#: What the scripted agent never answers as the rules want it.
SUSPENDED = "Schreib ein ADR zur Umstellung auf ereignisbasierte Rechnungen."
HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("BROWSER_VENV", ".helix-tools/browser/venv")).absolute() / "bin" / "python"


def missing() -> str:
    """Why no browser can be had here; '' when one can."""
    if not os.environ.get("BROWSER_VENV"):
        return "run by `make test-pages`: it installs playwright, and Chromium where it may"
    if not PYTHON.exists():
        return f"no playwright in {PYTHON.parent.parent}"
    return "" if shutil.which("chromium") else "no chromium"


def browse(*steps: list[Any]) -> list[Any]:
    """What a browser sees; see ``look.py``."""
    found = subprocess.run(
        [str(PYTHON), str(HERE / "look.py")], input=json.dumps(steps), capture_output=True, text=True, timeout=170
    )
    assert found.returncode == 0, found.stderr
    seen: list[Any] = json.loads(found.stdout)
    return seen


@contextmanager
def installation(root: Path, *options: str, **more: str) -> Iterator[dict[str, Any]]:
    """A real ``turns up`` on a root of its own: its addresses, and the environment (``environ``) of its commands."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_") and name != "REDIS_URL"}
    environ = kept | {"HELIX_ROOT": str(root), "HELIX_LEASE_SECONDS": "3", **more}
    command = turns("up", "--json", "--port", "0", *options)
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout
        yield {**json.loads(process.stdout.readline()), "environ": environ}
    finally:
        process.terminate()
        process.wait(60)


def submitted(environ: dict[str, str], *arguments: str) -> str:
    """The id of a turn that was handed in by ``turns submit``."""
    found = subprocess.run(turns("submit", *arguments), env=environ, capture_output=True, text=True, check=True)
    return found.stdout.split()[0] if "--wait" not in arguments else found.stderr.split()[1]


def store_of(told: dict[str, Any]) -> Settings:
    """Settings that reach the installation's store."""
    return replace(Settings(), store_url=told["redis_url"], broker_url=told["redis_url"])


def asked(message: str, **more: Any) -> TurnRequest:
    """A turn of a session of its own."""
    messages = ({"role": "user", "content": message},)
    return TurnRequest(model="scripted", messages=messages, session_id=new_session_id(), **more)


async def suspended(client: TurnsClient, message: str = SUSPENDED) -> str:
    """The id of a turn that nobody but a person can end."""
    attached = Escalation(timeout_seconds=4 * 3600).attached
    policy = {"adr_structure": ("retry", "escalate")}
    turn_id = await client.submitter.submit(asked(message, max_attempts=2, policy=policy, attached=attached))

    async def waits() -> bool:
        return (await client.reader.read_turn(turn_id)).state is TurnState.SUSPENDED

    await wait_until(waits)
    return turn_id
