"""OpenAI's Codex command line as an agent."""
