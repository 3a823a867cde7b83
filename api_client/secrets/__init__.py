"""Secrets for MCP servers: kept in the store, encrypted with keys from a file that only this user can read."""
