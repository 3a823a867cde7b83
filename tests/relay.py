"""A real relay process for tests that talk to it as clients do."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from api_client.contract.settings import Settings
from tests.conftest import environ_of, turns
from tests.ports import free_port
from tests.support import wait_for
from worker.processes.programs import answers


def relay_answers(settings: Settings) -> bool:
    """True once a relay serves. Cheap, for it is asked again and again while the relay needs the processor to start."""
    return answers("127.0.0.1", settings.web_port, "/healthz", seconds=10.0) == 200


class RelayProcess:
    """A real ``turns web`` on a port of its own, that can be killed and started again on the same port."""

    def __init__(self, settings: Settings) -> None:
        port = free_port()
        self.settings = replace(settings, web_port=port)
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(turns("web"), env=environ_of(self.settings), stdin=subprocess.DEVNULL)
        wait_for(self.answers)

    def answers(self) -> bool:
        return relay_answers(self.settings)

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait(60)
