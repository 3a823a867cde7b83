"""compose.yaml without an engine: each service's own command with its own environment, as processes of this machine.

Only what a container would give is put in its place: folders, host names, ports, and the server's binary.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.ports import free_port
from tests.receiver import Receiver
from tests.support import wait_for
from worker.processes.embedded_broker import find_server

COMPOSE = Path(__file__).parents[2] / "compose"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


class Stack:
    """What Compose would run, as processes; ``start`` one, ask its health check, read its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"6379": str(free_port()), "8765": str(free_port()), "5555": str(free_port())}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("data", "keys", "broker-data", "flower", "tmp", "bin"):
            (folder / name).mkdir()
        host = f"127.0.0.1:{self.ports['6379']}"
        subprocess.run([COMPOSE / "secrets.sh", folder / "secrets", host], check=True, capture_output=True)
        turns = f"#!/bin/sh\nexec {sys.executable} -c 'from worker.cli import main; main()' \"$@\"\n"
        for name, text in {"turns": turns, "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "bin" / "valkey-server").symlink_to(find_server().path)

    def placed(self, text: str, data: str = "data") -> str:
        """A text of compose.yaml with this machine's folders and ports."""
        places = {
            "${HELIX_MODELS:-scripted=scripted}": "scripted=scripted",
            "/run/secrets": str(self.folder / "secrets"),
            "/broker/start.sh": str(COMPOSE / "broker" / "start.sh"),
            "/tmp/worker.ready": str(self.folder / "tmp" / "worker.ready"),
            "/tmp/traces.ready": str(self.folder / "tmp" / "traces.ready"),
            "${OTEL_EXPORTER_OTLP_HEADERS:-}": "",
            "/flower/": f"{self.folder / 'flower'}/",
            "/keys/": f"{self.folder / 'keys'}/",
            "0.0.0.0": "127.0.0.1",
            "$$": "$",
        }
        if text == "/data":
            return str(self.folder / data)
        for old, new in (places | self.ports).items():
            text = text.replace(old, new)
        return text

    def start(self, name: str, *arguments: str, **more: str) -> None:
        service = SERVICES[name]
        environ = {key: self.placed(str(value)) for key, value in service["environment"].items()}
        environ = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **environ, **more}
        command = [self.placed(part) for part in service["command"]] + [*arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, env=environ, cwd=self.folder / "data", stdout=log, stderr=log, start_new_session=True
            )

    def healthy(self, name: str) -> bool:
        """Its own health check, as Docker would run it."""
        assert self.processes[name].poll() is None, (self.folder / f"{name}.log").read_text()
        kind, *test = (self.placed(part) for part in SERVICES[name]["healthcheck"]["test"])
        command = ["sh", "-c", *test] if kind == "CMD-SHELL" else test
        environ = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(command, env=environ, capture_output=True, timeout=120).returncode == 0

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def test_every_service_starts_gets_healthy_and_a_turn_goes_through_all_of_them(
    stack: Stack, receiver: Receiver
) -> None:
    port = stack.ports["6379"]
    folders = {"DIRECTORY": str(stack.folder / "broker-data"), "SECRETS": str(stack.folder / "secrets")}
    stack.start("broker", "--port", port, "--bind", "127.0.0.1", **folders)
    wait_for(lambda: _listens(int(port)))
    for name in ("worker", "web", "flower"):
        stack.start(name)
    stack.start("traces", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    for name in ("worker", "web", "flower", "traces"):
        wait_for(_healthy(stack, name), 180, tick=0.3)
    url = f"http://127.0.0.1:{stack.ports['8765']}/v1/chat/completions"
    key = (stack.folder / "secrets" / "api_keys").read_text().strip()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
    assert httpx2.post(url, json=body, timeout=120).status_code == 401
    answer = httpx2.post(url, json=body, timeout=120, headers={"authorization": f"Bearer {key}"})
    turn_id = answer.headers["x-turn-id"]
    webui = {"authorization": f"Bearer {(stack.folder / 'secrets' / 'webui_key').read_text().strip()}"}
    assert httpx2.post(url, json=body, timeout=120, headers=webui).json()["error"]["code"] == "user_required"
    assert httpx2.post(url, json=body, timeout=120, headers={**webui, "x-owui-user-id": "u"}).status_code == 200
    wait_for(lambda: receiver.trace(turn_id))
    login = tuple((stack.folder / "secrets" / "flower_login").read_text().strip().split(":"))
    flower = f"http://127.0.0.1:{stack.ports['5555']}"
    assert httpx2.get(f"{flower}/tasks", timeout=60).status_code == 401
    assert httpx2.get(f"{flower}/tasks", auth=login, timeout=60).status_code == 200  # type: ignore[arg-type]
    assert "NOPERM" not in "".join(file.read_text() for file in stack.folder.glob("*.log"))


def _healthy(stack: Stack, name: str) -> Callable[[], bool]:
    def healthy() -> bool:
        return stack.healthy(name)

    return healthy


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
