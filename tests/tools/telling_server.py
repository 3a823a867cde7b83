"""An MCP server that tells its credentials in every way it has: ``python telling_server.py [PORT]``.

Over standard streams it tells its variable ``TOLD``, over HTTP the header ``Authorization`` of the request.
"""

import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("telling")


def _read_secret(context: Context) -> str:
    request = context.request_context.request
    return request.headers.get("authorization", "none") if request else os.environ.get("TOLD", "none")


@server.tool()
def tell(context: Context) -> dict[str, str]:
    """Tell the credential as a result."""
    secret = _read_secret(context)
    print("on standard error:", secret, file=sys.stderr, flush=True)
    return {"told": f"it is {secret}", secret: "as a key"}


@server.tool()
def fail(context: Context) -> str:
    """Tell the credential as an error."""
    raise ToolError(f"wrong token {_read_secret(context)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
