"""An agent that asks an OpenAI-compatible service over HTTP."""
