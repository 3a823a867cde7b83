"""OpenAI's Codex CLI as an agent."""
