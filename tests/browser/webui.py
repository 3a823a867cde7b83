"""A real Open WebUI as a process of its own, and the browser that drives it. ``make e2e-openwebui`` installs both."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.ports import free_port
from tests.support import wait_for

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("OPENWEBUI_VENV", ".helix-tools/openwebui/venv")).absolute() / "bin" / "python"
#: The smallest Open WebUI: no data of a user, no models of its own, nothing from the network.
SLIM = {
    "PATH": "/usr/bin:/bin",
    "USE_SLIM_DOCKER": "True",
    "VECTOR_DB": "pgvector",
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
}


def missing() -> str:
    """Why the browser tests cannot run here; '' when they can."""
    if not os.environ.get("OPENWEBUI"):
        return "run by `make e2e-openwebui`: it installs Open WebUI and takes some minutes"
    if not PYTHON.exists():
        return f"no Open WebUI in {PYTHON.parent.parent}"
    return "" if shutil.which("chromium") else "no chromium"


def script(name: str, folder: Path) -> Path:
    """A script of this folder, below ``folder``; its long answers wait for the file ``drive.py`` makes there."""
    written = folder / name
    written.write_text((HERE / name).read_text().replace("GATE", str(folder / "openwebui" / "gate")))
    return written


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2).status_code == 200
    except httpx2.TransportError:
        return False


@contextmanager
def open_webui(data: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """The address of an Open WebUI that keeps its data in a new folder; its log is ``data/log``."""
    data.mkdir()
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with (data / "log").open("wb") as log:
        server = subprocess.Popen(
            [str(PYTHON), str(PYTHON.with_name("open-webui")), "serve", "--host", "127.0.0.1", "--port", str(port)],
            env={**SLIM, "HOME": str(data), "DATA_DIR": str(data), **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_for(lambda: answers(f"{address}/health") or server.poll() is not None, 300, tick=0.5)
            assert server.poll() is None, (data / "log").read_text()
            yield address
        finally:
            server.terminate()
            server.wait(30)


def drive(address: str, folder: Path, *questions: dict[str, Any]) -> dict[str, Any]:
    """What a browser saw of each question, by its name; see ``drive.py``."""
    driver = [str(PYTHON), str(HERE / "drive.py"), address, str(folder)]
    found = subprocess.run(driver, input=json.dumps(questions), capture_output=True, text=True, timeout=1200)
    assert found.returncode == 0, found.stderr
    (folder / "seen.json").write_text(found.stdout)
    seen: dict[str, Any] = json.loads(found.stdout)
    return seen


def call(address: str, path: str, body: object, token: str = "") -> Any:
    """The answer of Open WebUI's own API to a POST."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx2.post(address + path, json=body, headers=headers, timeout=60)
    answer.raise_for_status()
    return answer.json()


def lines_of(seen: dict[str, Any]) -> list[tuple[str, bool]]:
    """The stored status lines of the answer, each with whether it is done."""
    return [(line["description"], line["done"]) for line in answer_of(seen)["statusHistory"]]


def answers_of(seen: dict[str, Any]) -> list[Any]:
    return [message for message in seen["stored"]["messages"] if message["role"] == "assistant"]


def answer_of(seen: dict[str, Any]) -> Any:
    [answer] = answers_of(seen)
    return answer
