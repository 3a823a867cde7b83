"""What people and programs see of tool calls: on the turn's page, in events and metrics, and by ``turns doctor``."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api_client.contract.counters import read_pending
from api_client.contract.event_kinds import AttemptTool
from api_client.contract.interruption import MAX_WAIT_SECONDS
from api_client.contract.settings import load_settings
from api_client.contract.tool_call_row import CallRow, CallState
from api_client.contract.turn import Outcome, new_turn_id
from tests.html import Document
from tests.installation import Installation, environ_of
from tests.support import processes_with
from tests.tools.running import PYTHON, block, call, counting, equip, told
from worker.plugins.tools import server_checks
from worker.plugins.tools.call_store import CallStore, RunFenced

PRICED = """
from mcp.server import MCPServer
from mcp_types import CallToolResult, TextContent

server = MCPServer("priced")

@server.tool()
def search(words: str, cost: float | str = 0.25) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=words)], _meta={"cost_usd": cost})

server.run("stdio")
"""


async def test_calls_are_on_the_page_in_the_events_and_counted_with_their_cost(installation: Installation) -> None:
    root = installation.settings.root
    (root / "priced.py").write_text(PRICED)
    priced = block("priced", command=[PYTHON, str(root / "priced.py")], writes="allow")
    equip(installation, counting(root, writes="allow", rules=[{"tool": "crash", "do": "deny"}]), priced)
    installation.worker()
    calls = [
        ("counter__write", {"note": "a <b>"}), ("counter__read", {}), ("counter__write", {"nothing": 1}),
        ("priced__search", {"words": "x"}), ("priced__search", {"words": "x", "cost": -5}), ("counter__crash", {}),
    ]  # fmt: skip
    turn = await installation.result(await call(installation, *calls))
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    events = [each.body for each in await installation.client.reader.read_events(turn.turn_id)]
    tools = [(each.server, each.name, each.result_bytes > 0) for each in events if isinstance(each, AttemptTool)]
    assert tools[0] == ("counter", "counter.write", True)
    assert tools[-1] == ("counter", "counter.crash", False)
    async with installation.web() as http:
        said = (await http.get(f"/turns/{turn.turn_id}")).text
        figures = (await http.get("/metrics")).text
    [shown] = Document(said).all("details", id="tool-calls")
    assert "a &lt;b&gt;" in said
    for words in ("counter.write", "priced.search", "$0.25", "denied", "6"):
        assert words in shown.text, words
    samples: dict[tuple[str, ...], float] = {
        (
            sample.name,
            *(sample.labels[name] for name in ("server", "tool", "outcome") if name in sample.labels),
        ): sample.value
        for family in text_string_to_metric_families(figures)
        for sample in family.samples
    }
    found = {name[1:]: value for name, value in samples.items() if name[0] == "helix_tool_called_total"}
    assert found == {
        ("counter", "write", "done"): 1, ("counter", "write", "error"): 1, ("counter", "read", "done"): 1,
        ("priced", "search", "done"): 2, ("counter", "crash", "denied"): 1,
    }  # fmt: skip
    assert samples["helix_tool_seconds_count", "counter", "write"] == 2
    assert samples["helix_cost_tools_usd_total", "priced"] == 0.25
    attempts = installation.run("turn", "attempts", turn.turn_id).stdout
    assert "priced.search done" in attempts


def test_the_doctor_lists_the_tools_of_each_server_or_says_why_there_are_none(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = installation.settings.root
    silent = root / "silent.py"
    silent.write_text("import time\ntime.sleep(600)\n")
    equip(
        installation,
        counting(root),
        block("silent", command=[PYTHON, str(silent)]),
        block("dying", command=[PYTHON, "-c", "raise SystemExit(3)"]),
        block("none", command=["/nowhere/server"]),
        block("away", url="http://127.0.0.1:1/mcp"),
        counting(root, "secret", credentials="bank"),
    )
    monkeypatch.setattr(server_checks, "LIMIT_SECONDS", 10.0)
    found = {each.check: each for each in server_checks.tools(load_settings(environ_of(installation.settings)))}
    assert {name.removeprefix("tools "): each.state for name, each in found.items()} == {
        "counter": "ok", "silent": "wrong", "dying": "wrong", "none": "wrong", "away": "wrong", "secret": "warning",
    }  # fmt: skip
    assert found["tools counter"].message == "4 tools, 1 of them only read: read, write, environment, crash"
    assert found["tools silent"].message == "no list of tools within 10 s"
    assert "/nowhere/server" in found["tools none"].message
    assert "stderr.log" in found["tools dying"].fix
    assert not processes_with(str(silent)), "a server that hangs is ended"


def test_the_doctor_command_has_the_servers(installation: Installation) -> None:
    equip(installation, counting(installation.settings.root))
    found = json.loads(installation.run("doctor", "--json").stdout)["findings"]
    assert [each["state"] for each in found if each["check"] == "tools counter"] == ["ok"]


async def test_a_row_that_is_written_again_after_a_lost_reply_is_counted_once(installation: Installation) -> None:
    turn_id = new_turn_id()
    installation.store.hset(installation.keys.turn(turn_id), "token", "t")
    row = CallRow(number=1, attempt=1, delivery=1, gateway="g", server="s", tool="write", digest="d")
    calls = CallStore(installation.client.store)
    for each in (row, row, replace(row, state=CallState.DONE), replace(row, state=CallState.DONE)):
        await calls.write_call(turn_id, "t", each)
    with pytest.raises(RunFenced):
        await calls.write_call(turn_id, "other", replace(row, state=CallState.FAILED))
    [counted] = installation.store.lrange(installation.keys.pending, 0, -1)
    assert read_pending(counted)[1]["tool.called|s|write|done"] == 1
    assert [each.state for each in await calls.read_calls(turn_id)] == [CallState.DONE]


async def test_rows_and_results_are_kept_while_a_person_may_still_be_waited_for(installation: Installation) -> None:
    turn_id = new_turn_id()
    record = installation.keys.turn(turn_id)
    installation.store.hset(record, "token", "t")
    row = CallRow(number=1, attempt=1, delivery=1, gateway="g", server="s", tool="write", digest="d")
    await CallStore(installation.client.store).write_call(turn_id, "t", row, "{}")
    for name in ("tool_calls", "tool_results"):
        kept: Any = installation.store.ttl(f"{record}:{name}")
        assert kept > MAX_WAIT_SECONDS


async def test_a_request_names_the_servers_that_its_turn_may_use(installation: Installation) -> None:
    root = installation.settings.root
    blocks = [counting(root, name, writes="allow") for name in ("one", "two")]
    equip(installation, *blocks, counting(root, "hers", writes="allow", keys=["her key"]))
    installation.settings = load_settings(environ_of(installation.settings))
    installation.worker()
    listed = {"role": "user", "content": json.dumps([["list", {}], ["two__write", {"note": "a"}]])}
    body = {"model": "m", "messages": [listed], "validators": []}
    async with installation.web() as http:
        for names, tools in ((["one"], "one__write"), (None, "one__write two__crash")):
            said = (await http.post("/v1/chat/completions", json={**body, "tool_servers": names})).json()
            text = said["choices"][0]["message"]["content"]
            assert tools in text
            assert "hers" not in text
            assert ("two__crash" in text, "two__write: line" in text) == ((names is None,) * 2), text
        nothing = await http.post("/v1/chat/completions", json={**body, "tool_servers": []})
        assert nothing.status_code == 502, "this agent fails without an endpoint"
        for names in (["One"], ["one", "none"], ["hers"], ["one", ""]):
            refused = await http.post("/v1/chat/completions", json={**body, "tool_servers": names})
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (400, "unknown_tool_server"), error
            assert error["param"] == "tool_servers"
        wrong = await http.post("/v1/chat/completions", json={**body, "tool_servers": "one"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_type")
    submit = ("submit", "--wait", "--model", "m", "--tool-server")
    said = await asyncio.to_thread(installation.run, *submit, "one", json.dumps([["list", {}]]))
    assert "one__write" in said.stdout
    assert "two__write" not in said.stdout
    unknown = await asyncio.to_thread(installation.run, *submit, "hers", "hello")
    assert "no server 'hers' for this request" in unknown.stderr
