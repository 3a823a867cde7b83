"""Catalogue entries for the MCP server."""

PLUGINS = {"commands": {"mcp": "mcp"}}
