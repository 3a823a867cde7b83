"""OAuth tokens of MCP servers: asked for by the gateway, kept encrypted, renewed when the server refuses them."""

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from api_client.contract.turn import Outcome
from api_client.secrets.secret_store import SecretStore
from tests.installation import Installation
from tests.ports import free_port
from tests.support import wait_for
from tests.tools.running import HERE, PYTHON, block, call, equip, rows, told
from tests.tools.stored_secrets import CANARY, find_holders, run_secrets
from worker.plugins.tools.credentials import StoredCredentials
from worker.plugins.tools.tool_servers import ToolServer
from worker.plugins.tools.upstream_pool import UpstreamPool

TELL = [("crm__tell", {})]


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An MCP server with an authorization server: its address, and the log of its token requests."""
    port, asked = free_port(), tmp_path / "asked.log"
    started = subprocess.Popen([PYTHON, "-m", "tests.tools.oauth_server", str(port), asked], cwd=HERE.parents[1])
    try:
        with socket.socket() as probe:
            wait_for(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)
        yield f"http://127.0.0.1:{port}", asked
    finally:
        started.kill()
        started.wait()


def configure(installation: Installation, url: str, issuer: str = "/issuer") -> None:
    run_secrets(installation, "new-key")
    assert run_secrets(installation, "set", "crm", "--client-secret", text=f"{CANARY}-client").returncode == 0
    oauth = {"issuer": f"{url}{issuer}", "client_id": "helix"}
    equip(installation, block("crm", url=f"{url}/mcp", credentials="crm", oauth=oauth, writes="allow"))


async def test_a_token_is_asked_for_shared_by_workers_renewed_once_and_stored_encrypted_alone(
    installation: Installation, issuer: tuple[str, Path]
) -> None:
    url, asked = issuer
    configure(installation, url)
    first = installation.worker()
    turn = await installation.result(await call(installation, *TELL, *TELL))
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert turn.response.count('"told": "it is Bearer ***"') == 2, told(installation, turn)
    assert asked.read_text() == f"read {url}/mcp\n"
    first.kill()
    installation.worker()
    turn = await installation.result(await call(installation, *TELL, session="second"))
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert len(asked.read_text().splitlines()) == 1, "the second worker has the first one's token"
    asked.with_suffix(".expire").touch()
    turn = await installation.result(await call(installation, *TELL, *TELL, session="third"))
    assert [row["state"] for row in rows(installation, turn.turn_id)] == ["done", "done"]
    assert len(asked.read_text().splitlines()) == 2
    listed = json.loads(run_secrets(installation, "list", "--json").stdout)
    assert [(each["server"], each["has"]) for each in listed] == [("", "client secret"), ("crm", "OAuth token")]
    assert find_holders(installation, CANARY, installation.settings.root) == set()
    assert run_secrets(installation, "delete", "crm").returncode == 0
    assert run_secrets(installation, "list").stdout == "no secrets\n", "the token went with the client's secret"


async def test_the_secret_of_a_client_goes_to_the_issuer_of_the_settings_alone(
    installation: Installation, issuer: tuple[str, Path]
) -> None:
    url, asked = issuer
    configure(installation, url, "/another")
    installation.worker()
    turn = await installation.result(await call(installation, *TELL))
    assert "cannot be reached, so the call was not made" in turn.response, told(installation, turn)
    assert not asked.exists()


async def test_a_client_that_the_issuer_refuses_is_an_answer_without_the_secret_that_the_issuer_repeats(
    installation: Installation, issuer: tuple[str, Path]
) -> None:
    url, _ = issuer
    configure(installation, url)
    assert run_secrets(installation, "set", "crm", "--client-secret", text=f"{CANARY}-wrong").returncode == 0
    installation.worker()
    turn = await installation.result(await call(installation, *TELL))
    assert "Token exchange failed (401)" in turn.response, told(installation, turn)
    assert "helix:*** is wrong" in turn.response
    assert find_holders(installation, CANARY, installation.settings.root) == set()


async def test_of_two_gateways_that_renew_a_token_at_once_none_loses_it(
    installation: Installation, issuer: tuple[str, Path], tmp_path: Path
) -> None:
    url, asked = issuer
    configure(installation, url)
    store = installation.client.store
    oauth = {"issuer": f"{url}/issuer", "client_id": "helix"}
    server = ToolServer(name="crm", url=f"{url}/mcp", credentials="crm", oauth=oauth)
    pools = [UpstreamPool(installation.settings, StoredCredentials(SecretStore(store)), store) for _ in range(3)]
    try:
        first, second = await asyncio.gather(*(pool.find_session(server, "") for pool in pools[:2]))
        asked.with_suffix(".expire").touch()
        told = await asyncio.gather(first.call_tool("tell", {}), second.call_tool("tell", {}))
        assert ["***" in str(each.content) for each in told] == [True, True]
        count = len(asked.read_text().splitlines())
        third = await pools[2].find_session(server, "")
        assert not (await third.call_tool("tell", {})).is_error
        assert len(asked.read_text().splitlines()) == count, "what is stored is a valid token"
    finally:
        await asyncio.gather(*(pool.close() for pool in pools))
