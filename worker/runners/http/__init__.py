"""An agent that sends requests to an OpenAI-compatible service over HTTP."""
