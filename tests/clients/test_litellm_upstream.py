"""``openai_http`` before a real gateway, LiteLLM's proxy, which asks the stub of a service."""

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agents.running import Agent
from tests.agents.stub import Services, StubReply, fails, says
from tests.clients.conftest import CLIENTS, environ, needs
from tests.ports import free_port
from tests.support import wait_for
from worker.processes.own_programs import fetch_status
from worker.runners.sandbox.guard_client import AgentProcesses

PROXY = CLIENTS / "litellm" / "bin" / "litellm"
KEY = f"sk-{secrets.token_hex(24)}"
pytestmark = [needs(PROXY), pytest.mark.timeout(900)]

#: What the service behind the gateway does -> our verdict.
ENDS: dict[str, tuple[StubReply, str]] = {
    "whole": (says("Hel", "lo ", "world"), "complete"),
    "output limit": (says("half ", end="limit"), "incomplete"),
    "content filter": (says("half ", end="filter"), "refused"),
    "400": (fails(400), "permanent"),
    "429": (fails(429, "1"), "transient"),
    "500": (fails(500), "transient"),
    "cut in the middle": (says("half ", "of it ", "and ", "more ", cut="first"), "transient"),
}


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with Services([says("Hello world")]) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    asked = f"{{model: openai/m1, api_base: '{services.url}/v1', api_key: sk-stub, max_retries: 0}}"
    (folder / "config.yaml").write_text(
        f"model_list: [{{model_name: m1, litellm_params: {asked}}}]\n"
        "litellm_settings: {num_retries: 0, telemetry: false}\nrouter_settings: {disable_cooldowns: true}\n"
    )
    command = [PROXY, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    given = environ(folder, LITELLM_MASTER_KEY=KEY)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=given,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        ready = "/health/liveliness"
        wait_for(lambda: process.poll() is not None or fetch_status("127.0.0.1", port, ready, seconds=5.0) == 200, 600)
        assert process.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_seen_through_a_gateway(
    gateway: str, services: Services, tmp_path: Path, agents: AgentProcesses, api: str, end: str
) -> None:
    reply, verdict = ENDS[end]
    services.replies = [reply]
    settings = {"openai_url": gateway, "openai_api_key": KEY, "api": api, "parameters": {"temperature": 0.5}}
    ran = Agent(root=tmp_path, runner="openai_http:m1", agents=agents, settings=settings).run()
    assert ran.verdict == verdict, (ran.reason, ran.evidence)
    assert services.requests[-1]["temperature"] == 0.5
    if verdict == "complete":
        assert ran.result.text == "Hello world"
