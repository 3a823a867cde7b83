"""Serves turns as MCP tools to other agents."""

COMMANDS = {"run.mcp": ("worker.plugins.mcp.serving:mcp", "Serve turns as tools to agents that speak MCP.")}
