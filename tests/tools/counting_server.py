"""An MCP server that counts in a file: ``python counting_server.py FILE [PORT]``, over standard streams or HTTP.

Each write appends a line, so that a test sees what was executed. ``wait`` holds a write until ``FILE.go`` is there.
"""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

FILE = Path(sys.argv[1])
server = MCPServer("counting")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read() -> str:
    """Return what was written."""
    return FILE.read_text() if FILE.exists() else ""


@server.tool()
async def write(note: str, wait: bool = False, size: int = 0, delay: float = 0.0) -> str:
    """Write a line between two delays, and return the number of lines."""
    await asyncio.sleep(delay)
    if wait:
        FILE.with_suffix(".begun").touch()
        while not FILE.with_suffix(".go").exists():
            await asyncio.sleep(0.01)
    with FILE.open("a") as file:
        file.write(f"{note}\n")
    await asyncio.sleep(delay)
    return f"line {len(FILE.read_text().splitlines())} {'x' * size}"


@server.tool()
def environment(name: str) -> str:
    """Return a variable of the server."""
    return os.environ.get(name, "")


@server.tool()
def crash() -> str:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
