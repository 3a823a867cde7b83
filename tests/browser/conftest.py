"""The real Open WebUI before the real relay, workers and broker. ``make e2e-openwebui`` installs what is needed."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.browser.webui import answers, drive, open_webui, script
from tests.installation import Installation, RelayProcess
from tests.support import wait_for

#: The header templates of docs/open-webui.md.
HEADERS = {
    "X-Owui-Task": "{{TASK}}",
    "X-Owui-Chat-Id": "{{CHAT_ID}}",
    "X-Owui-Message-Id": "{{MESSAGE_ID}}",
    "X-Owui-User-Message-Id": "{{USER_MESSAGE_ID}}",
}
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def installed(installation: Installation, tmp_path: Path) -> RelayProcess:
    """Worker and relay, with the scripted agent of this folder."""
    models = {"helix": f"scripted:{script('script.yaml', tmp_path)}"}
    action_log = str(tmp_path / "action_log.jsonl")
    installation.change(models=models, lease_seconds=10.0, stop_grace_seconds=30.0, action_log=action_log)
    installation.worker()
    relay = installation.relay()
    wait_for(lambda: answers(f"{relay.url}/readyz"))
    return relay


@pytest.fixture
def agent_runs(tmp_path: Path) -> Callable[[], list[str]]:
    """The agent runs that were really started, by turn."""

    def read() -> list[str]:
        lines = map(json.loads, (tmp_path / "action_log.jsonl").read_text().splitlines())
        return [line["turn"] for line in lines if line["event"] == "start"]

    return read


@pytest.fixture
def ask(installed: RelayProcess, tmp_path: Path) -> Iterator[Ask]:
    """Puts questions to the page of a real Open WebUI; returns what was seen of each."""
    data = tmp_path / "openwebui"
    with open_webui(data, open_webui_environ(installed.port)) as address:
        yield partial(drive, address, data)


def open_webui_environ(relay_port: int) -> dict[str, str]:
    """Open WebUI without a login, before our relay."""
    return {
        "WEBUI_SECRET_KEY": "test",
        "WEBUI_AUTH": "False",
        "ENABLE_OLLAMA_API": "False",
        "ENABLE_PERSISTENT_CONFIG": "False",
        "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
        "DEFAULT_MODELS": "helix",
        "OPENAI_API_BASE_URL": f"http://127.0.0.1:{relay_port}/v1",
        "OPENAI_API_KEY": "any",
        "OPENAI_API_CONFIGS": json.dumps({"0": {"headers": HEADERS}}),
    }
