"""MCP servers that agents may use: the choice for a turn, people's sign-in to them, and the log of tool calls."""
