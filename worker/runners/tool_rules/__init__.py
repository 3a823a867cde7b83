"""Matches agents' tool calls with a policy's rules. Agents' hooks run this code without third-party packages."""
