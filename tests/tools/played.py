"""A run of the tool gateway whose store, servers and worker a test plays."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from mcp_types import CallToolResult, TextContent, Tool, ToolAnnotations

from api_client.contract.tool_call_row import CallRow
from worker.plugins.tools.gateway import GatewayRun
from worker.plugins.tools.run_spec import RunSpec
from worker.plugins.tools.tool_servers import ToolServer

SERVER = ToolServer(name="s", url="http://s.invalid", writes="allow")
Act = Callable[[Mapping[str, Any]], Any]


class Played:
    """Store, upstream server and worker of the runs of one turn."""

    def __init__(self) -> None:
        self.rows: dict[str, CallRow] = {}
        self.results: dict[str, Any] = {}
        self.log: list[str] = []
        self.made: list[Mapping[str, Any]] = []
        self.found: list[str] = []
        self.act: Act = lambda _: text("ok")
        self.fails: Exception | None = None
        self.usable = 0
        self.secrets = set[str]()
        self.server = SERVER

    # The store.
    async def write_call(self, turn_id: str, token: str, row: CallRow, result: str = "") -> None:
        await asyncio.sleep(0)  # others run meanwhile, as with a store
        if self.fails:
            raise self.fails
        self.log.append(f"write {row.state}")
        self.rows[row.name] = row
        if result:
            self.results[row.name] = json.loads(result)

    async def read_result(self, turn_id: str, name: str) -> Any:
        return self.results.get(name)

    # The server.
    async def find_session(self, server: ToolServer, owner: str) -> Any:
        return self

    def list_secrets(self) -> set[str]:
        return self.secrets

    async def find_tool(self, name: str) -> Tool | None:
        self.found.append(name)
        reads = ToolAnnotations(read_only_hint=True)
        known = {"write": None, "read": reads}
        return Tool(name=name, input_schema={}, annotations=known[name]) if name in known else None

    async def list_tools(self) -> list[Tool]:
        return [Tool(name="write", input_schema={}, output_schema={"type": "object"})]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        self.log.append(f"call {name}")
        self.made.append(arguments)
        found = self.act(arguments)
        found = await found if asyncio.iscoroutine(found) else found
        if isinstance(found, Exception):
            raise found
        return found

    # The worker.
    async def use_up_approval(self) -> bool:
        self.usable -= 1
        return self.usable >= 0

    async def suspend_run(self, question: Mapping[str, Any]) -> None:
        self.log.append(f"ask {question['asked']['arguments']}")

    def report_call(self, row: CallRow) -> None:
        self.log.append(f"report {row.state}")

    def run(self, delivery: int = 1, **spec: Any) -> "Run":
        facts = {"turn_id": "t", "attempt": 1, "token": "k", "owner": "o", "locale": "en", "folder": f"/d{delivery}"}
        made = RunSpec(**{**facts, "delivery": delivery, "servers": (self.server,), **spec})
        me: Any = self
        return Run(made, list(self.rows.values()), f"g{delivery}", me, me, me)

    def states(self) -> list[str]:
        return [row.state.value for _, row in sorted(self.rows.items())]


class Run(GatewayRun):
    async def say(self, tool: str = "write", gone: asyncio.Event | None = None, **arguments: Any) -> str:
        return " ".join(
            each.text for each in (await self.call_tool(f"s__{tool}", arguments, gone or asyncio.Event())).content
        )


def text(said: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=said)])
