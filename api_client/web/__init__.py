"""The relay: turns behind an OpenAI-compatible HTTP API. Only this package imports FastAPI."""
