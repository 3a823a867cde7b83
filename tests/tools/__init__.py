"""What tests of the tool gateway share: an MCP server that counts, and an agent that makes the calls a test names."""
