"""Matches an agent's tool calls against a policy's rules. Standard library only, for agents' hooks."""
