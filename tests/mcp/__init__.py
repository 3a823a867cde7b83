"""Tasks by MCP, while what carries them out is killed."""
