"""Match an agent's tool calls against a policy's rules. The standard library alone: hooks of agents use it."""
