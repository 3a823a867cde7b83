"""An MCP server: other agents submit turns as tools."""

COMMANDS = {"mcp": ("worker.plugins.mcp.serving:mcp", "Serve turns as tools to agents that speak MCP.")}
