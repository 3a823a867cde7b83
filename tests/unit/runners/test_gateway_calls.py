"""Calls of the tool gateway's tools, which the gateway reports: an agent's own announcement of one is not shown."""

import io
import json
from typing import Any

import pytest

from worker.plugins.acp.agent_client import EventPrinter
from worker.plugins.codex.runner import CodexEventReader
from worker.runners.claude.cli_stream import ClaudeStream


def test_claude_shows_its_own_tools_alone() -> None:
    names = ("mcp__helix__counter__write", "Bash", "mcp__helixes__x")
    used = [{"type": "tool_use", "id": name, "name": name, "input": {}} for name in names]
    stream = ClaudeStream()
    events = stream.take_line(json.dumps({"type": "assistant", "message": {"id": "m", "content": used}}).encode())
    assert [event.text for event in events] == ["Bash", "mcp__helixes__x"]
    assert [call.what for call in stream.tool_calls.calls] == [names[0], "", names[2]], "the log has them all"


@pytest.mark.parametrize(("server", "shown"), [("helix", 0), ("other", 1)])
def test_codex_shows_calls_of_other_servers_alone(server: str, shown: int) -> None:
    item = {"id": "1", "type": "mcp_tool_call", "server": server, "tool": "counter__write"}
    reader = CodexEventReader(continues=False)
    assert len(list(reader.take_line(json.dumps({"type": "item.started", "item": item}).encode()))) == shown


@pytest.mark.parametrize(
    ("call", "gateway", "shown"),
    [
        ({"title": "mcp__helix__counter_write"}, True, False),
        ({"title": "helix_counter__write", "kind": "other"}, True, False),
        ({"title": "helix_counter__write", "kind": "execute"}, True, True),
        ({"title": "helix_counter__write; rm x", "kind": "other"}, True, True),
        ({"title": "helix_counter__write"}, False, True),
        ({"title": "counter__write (helix MCP Server)", "kind": "other"}, True, False),
        ({"title": "counter__write (other MCP Server)", "kind": "other"}, True, True),
    ],
)
def test_an_acp_agent_with_a_gateway_shows_its_own_tools_alone(
    call: dict[str, Any], gateway: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HELIX_TOOLS_URL", raising=False)
    if gateway:
        monkeypatch.setenv("HELIX_TOOLS_URL", "http://127.0.0.1/helix-tools/mcp")
    out = io.BytesIO()
    EventPrinter(out).print_tool_start(call)
    assert (b'"event": "tool"' in out.getvalue()) is shown
