"""The relay: turns behind an OpenAI-compatible HTTP API. FastAPI is imported nowhere else."""
