"""An OpenAI-compatible HTTP server as an agent."""
