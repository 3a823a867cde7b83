"""The MCP server: its part of the catalogues."""

PLUGINS = {"commands": {"mcp": "mcp"}}
