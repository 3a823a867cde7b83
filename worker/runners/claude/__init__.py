"""The Claude CLI as an agent."""
