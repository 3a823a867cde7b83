"""Real agents that are asked for parts: what their programs do to the request and to the reply."""
