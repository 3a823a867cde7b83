"""Catalogue entries for the MCP server."""

PLUGINS = {"commands": {"run.mcp": "mcp"}}
