"""The real Open WebUI before the real relay, workers and broker. ``make e2e-openwebui`` installs what is needed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api_client.contract.settings import Settings
from tests.conftest import WorkerProcess, environ_of, turns
from tests.support import wait_for

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("OPENWEBUI_VENV", ".helix-tools/openwebui/venv")).absolute() / "bin" / "python"
#: The header templates of docs/open-webui.md.
HEADERS = {
    "X-Owui-Task": "{{TASK}}",
    "X-Owui-Chat-Id": "{{CHAT_ID}}",
    "X-Owui-Message-Id": "{{MESSAGE_ID}}",
    "X-Owui-User-Message-Id": "{{USER_MESSAGE_ID}}",
}


def missing() -> str:
    """Why the browser tests cannot run here; '' when they can."""
    if not os.environ.get("OPENWEBUI"):
        return "run by `make e2e-openwebui`: it installs Open WebUI and takes some minutes"
    if not PYTHON.exists():
        return f"no Open WebUI in {PYTHON.parent.parent}"
    return "" if shutil.which("chromium") else "no chromium"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2).status_code == 200
    except httpx2.TransportError:
        return False


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def installation(
    settings: Settings, tmp_path: Path, worker_process: Callable[..., WorkerProcess]
) -> Iterator[Settings]:
    """Worker and relay, with the scripted agent of this folder."""
    models = {"helix": f"scripted:{HERE / 'script.yaml'}"}
    used = replace(
        settings,
        models=models,
        web_port=free_port(),
        lease_seconds=10.0,
        stop_grace_seconds=30.0,
        witness=str(tmp_path / "witness.jsonl"),
    )
    worker_process(settings=used)
    relay = subprocess.Popen(turns("web"), env=environ_of(used), stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{used.web_port}/readyz"))
        yield used
    finally:
        relay.terminate()
        relay.wait(20)


@pytest.fixture
def agent_runs(tmp_path: Path) -> Callable[[], list[str]]:
    """The agent runs that were really started, by turn."""

    def read() -> list[str]:
        lines = map(json.loads, (tmp_path / "witness.jsonl").read_text().splitlines())
        return [line["turn"] for line in lines if line["event"] == "start"]

    return read


@pytest.fixture
def ask(installation: Settings, tmp_path: Path) -> Iterator[Ask]:
    """Puts questions to the page of a real Open WebUI; returns what was seen of each."""
    port, data = free_port(), tmp_path / "openwebui"
    data.mkdir()
    log = (data / "log").open("wb")
    server = subprocess.Popen(
        [str(PYTHON.with_name("open-webui")), "serve", "--host", "127.0.0.1", "--port", str(port)],
        env=open_webui_environ(data, installation.web_port),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"

    def put(*questions: dict[str, Any], folder: Path = data) -> dict[str, Any]:
        driver = [str(PYTHON), str(HERE / "drive.py"), address, str(folder)]
        found = subprocess.run(driver, input=json.dumps(questions), capture_output=True, text=True, timeout=400)
        assert found.returncode == 0, found.stderr
        (folder / "seen.json").write_text(found.stdout)
        seen: dict[str, Any] = json.loads(found.stdout)
        return seen

    try:
        wait_for(lambda: answers(f"{address}/health") or server.poll() is not None, 120, tick=0.5)
        assert server.poll() is None, (data / "log").read_text()
        yield put
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def open_webui_environ(data: Path, relay_port: int) -> dict[str, str]:
    """Open WebUI without a user's data, without models of its own, and before our relay."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(data),
        "DATA_DIR": str(data),
        "USE_SLIM_DOCKER": "True",
        "VECTOR_DB": "pgvector",
        "WEBUI_SECRET_KEY": "test",
        "WEBUI_AUTH": "False",
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "ENABLE_OLLAMA_API": "False",
        "ENABLE_PERSISTENT_CONFIG": "False",
        "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
        "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
        "DEFAULT_MODELS": "helix",
        "OPENAI_API_BASE_URL": f"http://127.0.0.1:{relay_port}/v1",
        "OPENAI_API_KEY": "any",
        "OPENAI_API_CONFIGS": json.dumps({"0": {"headers": HEADERS}}),
    }
