"""Implement ``turns run mcp``: MCP over standard streams, and HTTP to a relay."""

from __future__ import annotations

from typing import Any

import click

from worker.plugins.mcp.mcp_tasks import build_extension
from worker.plugins.mcp.mcp_tools import RelayAccess, RelayError, TurnTask, TurnTools


def serve_tools(tools: TurnTools, version: str) -> None:
    """Serve the MCP tools over standard input and output until the input ends."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import ToolError

    async def submit_turn(
        message: str,
        ctx: Context[Any, Any],
        model: str = "",
        session: str = "",
        key: str = "",
        wait_seconds: float | None = None,
    ) -> TurnTask:
        try:
            request, progress = ctx.request_context, ctx.report_progress
            return await tools.submit_and_wait(request, progress, message, model, session, key, wait_seconds)
        except RelayError as error:
            raise ToolError(str(error)) from None

    async def get_turn(turn_id: str, ctx: Context[Any, Any], wait_seconds: float = 0) -> TurnTask:
        try:
            return await tools.await_turn(turn_id, ctx.report_progress, wait_seconds)
        except RelayError as error:
            raise ToolError(str(error)) from None

    async def cancel_turn(turn_id: str) -> TurnTask:
        try:
            return await tools.cancel_turn(turn_id)
        except RelayError as error:
            raise ToolError(str(error)) from None

    for tool in (submit_turn, get_turn):
        tool.__annotations__["ctx"] = Context
    server = MCPServer("helix-turns", version=version, log_level="WARNING", extensions=[build_extension(tools)])
    server.add_tool(
        submit_turn,
        description="Ask another agent, durably: its answer is checked, and asked again until it passes. Waits for the "
        "end; with status 'working' ask get_turn later. Calls with the same session are one conversation; calls "
        "with the same key are one turn.",
    )
    server.add_tool(get_turn, description="The state of a turn, and its answer; waits up to wait_seconds for its end.")
    server.add_tool(cancel_turn, description="Cancel a turn. Once more changes nothing.")
    server.run("stdio")


@click.command(epilog="Example: turns run mcp --url http://127.0.0.1:8765 --model scripted")
@click.option("--url", envvar="TURNS_URL", default="http://127.0.0.1:8765", show_default=True, help="Relay's address.")
@click.option("--key", envvar="TURNS_KEY", default="", help="The relay's key; better in the environment: TURNS_KEY.")
@click.option("--model", default="helix-consultant", show_default=True, help="Model for calls that name none.")
@click.option("--wait", default=600.0, show_default=True, help="How long a call waits for a turn's end, in seconds.")
@click.option("--patience", default=600.0, show_default=True, help="How long the relay may be away, in seconds.")
def mcp(url: str, key: str, model: str, wait: float, patience: float) -> None:
    """Serve turns as tools to an agent that speaks MCP, over standard input and output.

    Turns continue if this process ends. A repeated call with the same name is the same turn.
    """
    from importlib.metadata import version
    from importlib.util import find_spec

    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url must begin with http:// or https://, not {url!r}")
    if find_spec("mcp") is None:
        raise click.UsageError("the MCP SDK is not installed: pip install '.[mcp]' in the checkout")
    serve_tools(TurnTools(RelayAccess(url.rstrip("/"), key, patience), model, wait), version("helix-turns"))
