"""The real tool gateway for one run of the kit, in front of a server that misbehaves. Nothing is stored."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any

from api_client.contract.settings import Settings
from worker.plugins.certification import tool_server
from worker.plugins.tools.tool_servers import ToolServer
from worker.runners.base import Order, ToolAccess


class _NoStore:
    """Stands in for the worker and the call log, which do not exist in a certification run."""

    async def read_calls(self, _: str) -> list[Any]:
        return []

    async def write_call(self, *_: object) -> None: ...

    async def send_message(self, _: object) -> None: ...

    def post_message(self, _: object) -> None: ...


@contextlib.asynccontextmanager
async def open_gateway(order: Order, kind: str) -> AsyncIterator[Order]:
    """Open a tool gateway to an MCP server that misbehaves as ``kind`` says, and yield the run's order with access."""
    from worker.plugins.tools.gateway_process import GatewayServer  # needs the MCP SDK
    from worker.plugins.tools.upstream_pool import UpstreamPool

    nobody: Any = _NoStore()
    command = (sys.executable, "-I", "-S", str(tool_server.__file__), kind)
    server = ToolServer(name="kit", command=command, writes="allow", timeout_seconds=5, max_result_bytes=2**22)
    spec = {name: getattr(order, name) for name in ("turn_id", "attempt", "delivery", "locale")}
    spec |= {"folder": str(order.directory), "token": "", "owner": "", "secrets": (), "servers": [asdict(server)]}
    upstreams = UpstreamPool(Settings(root=order.workdir, sandbox="off"), nobody)
    served, path = GatewayServer(nobody, upstreams, nobody), order.workdir / "tools.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        serving = asyncio.create_task(served.serve_requests(listener))
        try:
            yield replace(order, tool_access=ToolAccess(socket=path, secret=await served.open_run(spec)))
        finally:
            await served.end_calls()
            serving.cancel()
            await upstreams.close()
