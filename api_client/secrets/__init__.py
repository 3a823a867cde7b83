"""Keeps the secrets of MCP servers in Redis, encrypted with keys from a file that only this user can read."""
