"""Sessions of the tool gateway with real MCP servers that die, hang, lie and move."""

import asyncio
import http.server
import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from api_client.contract.settings import load_settings
from api_client.secrets.secret_store import SecretId, StoredSecret
from tests.ports import answers_on, free_port
from tests.support import processes_with, wait_until
from tests.tools.running import HERE, PYTHON
from worker.plugins.tools import upstream, upstream_process
from worker.plugins.tools.credentials import Credential, StoredCredentials
from worker.plugins.tools.tool_servers import ToolServer
from worker.plugins.tools.upstream import (
    CallRefused,
    MalformedResult,
    OutcomeUnknown,
    ServerUnreachable,
    SessionGone,
)
from worker.plugins.tools.upstream_pool import UpstreamPool


class Credentials(StoredCredentials):
    """Gives each owner a credential; ``alice`` has an own one."""

    def __init__(self) -> None:
        pass

    async def read_credential(self, name: str, owner: str) -> Credential:
        return Credential(headers={"x-key": "canary"}, environment={"WHO": owner}, personal=owner == "alice")


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[UpstreamPool]:
    settings = load_settings({"HELIX_ROOT": str(tmp_path), "HELIX_SANDBOX": "off"})
    made = UpstreamPool(settings, Credentials())
    yield made
    await made.close()


def hostile(tmp_path: Path, **values: Any) -> ToolServer:
    return ToolServer(name="h", command=(PYTHON, str(HERE / "hostile_server.py"), str(tmp_path / "calls")), **values)


def pids(script: str, tmp_path: Path) -> list[int]:
    return [pid for pid, command in processes_with(f"HOME={tmp_path}").items() if script in command]


async def test_the_log_of_a_server_is_kept_when_another_process_starts_the_server(
    pool: UpstreamPool, tmp_path: Path
) -> None:
    server = ToolServer(name="h", command=("sh", "-c", "echo started >&2; exit 1"))
    for _ in range(2):
        with pytest.raises(ServerUnreachable):
            await pool.find_session(server, "o")
    [log] = tmp_path.rglob("stderr.log")
    assert log.read_text() == "started\n" * 2
    log.write_text("x" * (upstream_process._LOG_BYTES + 1))
    with pytest.raises(ServerUnreachable):
        await pool.find_session(server, "o")
    assert log.read_text() == "started\n"


async def test_each_way_to_misbehave_is_told_apart_and_ends_no_other_call(pool: UpstreamPool, tmp_path: Path) -> None:
    server = hostile(tmp_path, timeout_seconds=2, credentials="c")
    session = await pool.find_session(server, "o-canary")
    listed = {tool.name for tool in await session.list_tools()}
    assert {"hang", "big", "schema"} < listed, "of both pages"
    assert not any(name.endswith("write") or len(name) > 128 for name in listed)
    assert "two words" not in listed
    assert await session.find_tool("a/b") is None
    slow = asyncio.create_task(session.call_tool("slow", {}))
    failed = await session.call_tool("error", {})
    assert (failed.is_error, failed.content[0].text) == (True, "it went wrong ***")
    for name, raised in {"refuse": CallRefused, "malformed": MalformedResult, "broken": OutcomeUnknown}.items():
        with pytest.raises(raised) as error:
            await session.call_tool(name, {})
        assert ("***" in str(error.value), "o-canary" in str(error.value)) == (True, False)
    for name in ("input", "schema"):
        with pytest.raises(MalformedResult):
            await session.call_tool(name, {})
    for name in ("garbage", "elicit"):
        assert f"{name} done" in str(await session.call_tool(name, {}))
    assert (await slow).content[0].text == "slow done"
    with pytest.raises(OutcomeUnknown):
        await session.call_tool("hang", {})
    assert session.is_open
    assert (tmp_path / "calls").read_text().splitlines().count("input") == 1
    assert await session.find_tool("added") is None
    await session.call_tool("change", {})
    await wait_until(lambda: not session._tools)
    assert await session.find_tool("added")


async def test_a_call_that_asks_for_input_is_not_made_a_second_time(pool: UpstreamPool, tmp_path: Path) -> None:
    server = hostile(tmp_path)
    session = await pool.find_session(replace(server, command=(*server.command, "modern")), "o")
    with pytest.raises(MalformedResult, match="it asks for input"):
        await session.call_tool("input", {})
    assert (tmp_path / "calls").read_text() == "input\n"


async def test_a_server_that_died_while_nobody_called_it_is_started_again(pool: UpstreamPool, tmp_path: Path) -> None:
    server = hostile(tmp_path)
    session = await pool.find_session(server, "o")
    for pid in pids("hostile_server", tmp_path):
        os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not session.is_open)
    again, same = await asyncio.gather(*(pool.find_session(server, "o") for _ in range(2)))
    assert again is same, "started once"
    assert await pool.find_session(replace(server, timeout_seconds=9), "o") is not again, "its block has changed"
    await asyncio.wait_for(session._task, 30)
    assert (await again.call_tool("slow", {})).content[0].text == "slow done"
    with pytest.raises(OutcomeUnknown):
        await again.call_tool("die", {})
    assert await pool.find_session(server, "o") is not again


async def test_a_server_that_does_not_start_in_time_is_started_anew_for_the_next_call(
    pool: UpstreamPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_START_SECONDS", 0.2)
    silent = ToolServer(name="h", command=("sh", "-c", "read _; read _; read _"))
    with pytest.raises(ServerUnreachable, match="did not start within"):
        await pool.find_session(silent, "o")
    assert not any(session.is_open for session in pool._sessions.values())


async def test_a_session_that_is_left_ends_after_the_calls_under_way(
    pool: UpstreamPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = hostile(tmp_path)
    session = await pool.find_session(server, "o")
    slow = asyncio.create_task(session.call_tool("slow", {}))
    await wait_until((tmp_path / "calls").exists)
    monkeypatch.setattr(upstream, "_LIST_SECONDS", 0.0)
    with pytest.raises(ServerUnreachable):
        await session.list_tools()
    assert await pool.find_session(server, "o") is not session
    assert (await slow).content[0].text == "slow done"
    await wait_until(lambda: len(pids("hostile_server", tmp_path)) == 1)


async def test_a_server_with_an_owners_credential_shares_neither_process_nor_home(
    pool: UpstreamPool, tmp_path: Path
) -> None:
    server = hostile(tmp_path, credentials="c")
    alice, bob, eve = [await pool.find_session(server, owner) for owner in ("alice", "bob", "eve")]
    assert alice is not bob
    homes = {path.name for path in (tmp_path / ".helix" / "tools").iterdir()}
    assert len(homes) == 2
    assert "h" in homes
    assert all(name == "h" or name.startswith("h.") for name in homes)
    assert bob is not eve, "the variables differ"


async def test_a_server_gets_no_variable_of_the_worker_and_a_folder_that_is_closed_to_others(
    pool: UpstreamPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "canary")
    command = (PYTHON, str(HERE / "counting_server.py"), str(tmp_path / "counts"))
    session = await pool.find_session(ToolServer(name="c", command=command, environment={"OWN": "a"}), "o")
    said = [await session.call_tool("environment", {"name": name}) for name in ("OF_THE_WORKER", "OWN")]
    assert [each.content[0].text for each in said] == ["", "a"]
    assert (tmp_path / ".helix" / "tools" / "c").stat().st_mode & 0o777 == 0o700


async def test_a_server_with_a_url_that_is_down_or_restarted_costs_no_unknown_outcome(
    pool: UpstreamPool, tmp_path: Path
) -> None:
    port = free_port()
    command = [PYTHON, HERE / "counting_server.py", tmp_path / "counts", str(port)]
    server = ToolServer(name="c", url=f"http://127.0.0.1:{port}/mcp")
    with pytest.raises(ServerUnreachable):
        await pool.find_session(server, "o")
    first = subprocess.Popen(command)
    try:
        await wait_until(lambda: answers_on(port))
        session = await pool.find_session(server, "o")
        await session.call_tool("write", {"note": "a"})
    finally:
        first.kill()
        first.wait()
    with pytest.raises(ServerUnreachable):
        await session.call_tool("write", {"note": "b"})
    second = subprocess.Popen(command)
    try:
        await wait_until(lambda: answers_on(port))
        for _ in range(2):
            session = await pool.find_session(server, "o")
            try:
                await session.call_tool("write", {"note": "c"})
                break
            except SessionGone:
                continue
    finally:
        second.kill()
        second.wait()
    assert (tmp_path / "counts").read_text() == "a\nc\n"


@pytest.mark.parametrize(
    "value", [{"headers": {"X": "canary-77\n"}}, {"headers": {"X": "canary-77 "}}, {"headers": {"X": "canary-77-ü"}}]
)
async def test_a_header_that_cannot_be_sent_is_refused_without_its_value(tmp_path: Path, value: Any) -> None:
    class Stored(StoredCredentials):
        def __init__(self) -> None:
            self._secrets: Any = self

        async def read_secret(self, *secret_ids: SecretId) -> StoredSecret:
            return StoredSecret(secret_id=secret_ids[0], value=value, set_at=0)

    settings = load_settings({"HELIX_ROOT": str(tmp_path), "HELIX_SANDBOX": "off"})
    pool = UpstreamPool(settings, Stored())
    with pytest.raises(ServerUnreachable) as refused:
        await pool.find_session(ToolServer(name="c", url=f"http://127.0.0.1:{free_port()}/mcp", credentials="c"), "o")
    assert "turns secrets set c" in str(refused.value)
    assert "canary" not in str(refused.value)


async def test_a_request_that_cannot_be_sent_is_told_without_its_headers(tmp_path: Path) -> None:
    class Unsendable(Credentials):
        async def read_credential(self, name: str, owner: str) -> Credential:
            return Credential(headers={"x-key": "canary-77\n"})

    settings = load_settings({"HELIX_ROOT": str(tmp_path), "HELIX_SANDBOX": "off"})
    pool = UpstreamPool(settings, Unsendable())
    port = free_port()
    server = subprocess.Popen([PYTHON, HERE / "counting_server.py", tmp_path / "counts", str(port)])
    try:
        await wait_until(lambda: answers_on(port))
        with pytest.raises(ServerUnreachable) as refused:
            await pool.find_session(ToolServer(name="c", url=f"http://127.0.0.1:{port}/mcp", credentials="c"), "o")
    finally:
        server.kill()
        server.wait()
    assert "canary" not in str(refused.value)


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Redirects, refuses and breaks off as ``plan`` says, and notes the headers it got."""

    plan: list[Any]
    seen: list[dict[str, str]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        what = self.plan.pop(0) if self.plan and body["method"] == "tools/call" else None
        if what == "cut":
            self.connection.close()
            return
        if isinstance(what, tuple):
            status, where = what
            self.send_response(status)
            self.send_header("location", where)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        me = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "e", "version": "1"}}
        results = {
            "initialize": me,
            "tools/list": {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "x" * (what or 1)}]},
        }
        result = results.get(body["method"])
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": body.get("id")}
        answer |= {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        sent = json.dumps(answer).encode()
        self.send_response(200 if result else 202 if body.get("id") is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        pass


async def test_redirects_refusals_cut_and_endless_answers_of_a_url(
    pool: UpstreamPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.plugins.tools.upstream_http._MOST_BYTES", 100_000)
    other: Any = type("Other", (Elsewhere,), {"plan": [], "seen": []})
    thief = http.server.ThreadingHTTPServer(("127.0.0.1", 0), other)
    plan = [(307, f"http://127.0.0.1:{thief.server_port}/mcp"), (401, "/"), "cut", 200_000]
    one: Any = type("One", (Elsewhere,), {"plan": plan, "seen": []})
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), one)
    for each in (thief, served):
        threading.Thread(target=each.serve_forever, daemon=True).start()
    try:
        server = ToolServer(name="e", url=f"http://127.0.0.1:{served.server_port}/mcp", credentials="c")
        session = await pool.find_session(server, "o")
        for raised in (OutcomeUnknown, ServerUnreachable, OutcomeUnknown, MalformedResult):
            with pytest.raises(raised):
                await session.call_tool("x", {})
        assert (await session.call_tool("x", {})).content[0].text == "x", "the session lives"
        assert one.seen[0]["x-key"] == "canary"
        assert other.seen == []
    finally:
        served.shutdown()
        thief.shutdown()
